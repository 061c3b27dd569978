"""What requests may say, as pydantic models: they check the requests and are the schemas of the OpenAPI document."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from serve.limits import MAX_IMAGES, MAX_NEIGHBOURS
from serve.refusal import refused_fault

IMAGE = "a JPEG, PNG or WebP file as base64 text or as a data URI"


def _listed(value: Any) -> Any:
    """One image as a list of one; {"image": ...} as its text."""
    items = value if isinstance(value, list) else [value]
    return [item["image"] if isinstance(item, dict) and item.keys() == {"image"} else item for item in items]


ModelName = Annotated[str, Field(description="a name from /v1/models; by default the first of them")]
Image = Annotated[str, Field(description=IMAGE)]
ImageList = Annotated[
    list[str],
    BeforeValidator(_listed),
    Field(description=f"1 to {MAX_IMAGES} images, each {IMAGE}; one may stand alone"),
]
Dimensions = Annotated[
    int | None, Field(ge=1, description="keep the first numbers only; what is left has unit L2 norm again")
]
OnError = Annotated[
    Literal["fail", "skip"], Field(description="refuse the request for a bad image, or answer for the good ones")
]


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EmbedQuery(Message):
    """The query of `POST /v1/embed`."""

    model: ModelName = ""
    normalize: Annotated[Literal["true", "false"], Field(description="scale every embedding to unit L2 norm")] = "false"
    dimensions: Dimensions = None
    dtype: Annotated[Literal["float32", "float16"], Field(description="of an npy or npz answer")] = "float32"
    on_error: OnError = "fail"


class EmbeddingsRequest(Message):
    """The body of `POST /v1/embeddings`, in the shape of OpenAI's endpoint."""

    model: ModelName = ""
    input: ImageList
    encoding_format: Annotated[
        Literal["float", "base64"], Field(description="numbers, or base64 of little-endian float32")
    ] = "float"
    dimensions: Dimensions = None
    normalize: Annotated[StrictBool, Field(description="scale every embedding to unit L2 norm")] = False
    on_error: OnError = "fail"
    user: Annotated[str, Field(description="what OpenAI's clients may send; not used")] = ""


class SimilarityRequest(Message):
    """The body of `POST /v1/similarity`."""

    model: ModelName = ""
    a: Image
    b: ImageList


class SearchRequest(Message):
    """The body of `POST /v1/search`."""

    image: Image
    k: Annotated[int, Field(strict=True, ge=1, le=MAX_NEIGHBOURS, description="how many of the nearest images")] = 10
    index: Annotated[str, Field(description="a name from /v1/indexes; by default the first of them")] = ""


Some = TypeVar("Some", bound=Message)


def from_query(kind: type[Some], values: dict[str, str]) -> Some:
    """A query as a message. Raises Refused (400) for its first fault."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise refused_fault(400, error.errors(include_url=False)[0], kind.model_fields) from error


def from_json(kind: type[Some], body: bytes) -> Some:
    """A JSON body as a message. Raises Refused (400) for its first fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise refused_fault(400, error.errors(include_url=False)[0], kind.model_fields) from error
