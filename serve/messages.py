"""Requests and answers as pydantic models, which validate the requests and are the schemas of the OpenAPI document."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from serve.limits import MAX_IMAGES, MAX_NEIGHBOURS
from serve.refusal import Refused, refused_fault

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


class NativeRequest(Message):
    """The body of `POST /embed`."""

    images: Annotated[list[str], Field(description=f"1 to {MAX_IMAGES} JPEG, PNG or WebP files, each as base64 text")]
    normalize: Annotated[StrictBool, Field(description="scale every embedding to unit L2 norm")] = False
    model: ModelName = ""


class ImageError(BaseModel):
    """Why an image has no embedding."""

    index: Annotated[int, Field(ge=0, description="position of the image in the request")]
    code: str
    message: str


SkippedErrors = Annotated[list[ImageError], Field(description="the images without an embedding; with on_error=skip")]


class EmbedAnswer(BaseModel):
    """One row of `dim` numbers for each image."""

    model: str
    dim: Annotated[int, Field(ge=1)]
    embeddings: list[list[float]]
    index: Annotated[list[int], Field(description="the image of each row; with on_error=skip")] = []
    errors: SkippedErrors = []


class NativeAnswer(BaseModel):
    """The answer of `POST /embed`."""

    model: str
    dim: int
    embeddings: list[list[float]]


class OpenAIEmbedding(BaseModel):
    object: Literal["embedding"]
    index: Annotated[int, Field(ge=0)]
    embedding: Annotated[list[float] | str, Field(description="numbers, or base64 of little-endian float32")]


class Usage(BaseModel):
    prompt_tokens: Literal[0]
    total_tokens: Literal[0]
    images: Annotated[int, Field(ge=0)]


class EmbeddingsAnswer(BaseModel):
    """The answer of OpenAI's endpoint."""

    object: Literal["list"]
    model: str
    data: list[OpenAIEmbedding]
    usage: Usage
    errors: SkippedErrors = []


class SimilarityAnswer(BaseModel):
    model: str
    similarities: Annotated[list[float], Field(description="one cosine for each image of `b`")]


class Neighbour(BaseModel):
    path: Annotated[str, Field(description="below the indexed folder")]
    similarity: Annotated[float, Field(description="cosine")]


class SearchAnswer(BaseModel):
    """The nearest images, the nearest first."""

    index: str
    model: str
    neighbours: list[Neighbour]


class ModelFacts(BaseModel):
    id: str
    object: Literal["model"]
    dim: Annotated[int, Field(ge=1, description="numbers of one embedding")]
    image_size: Annotated[int, Field(ge=1, description="side in pixels to which images are resized and cropped")]
    weights_sha256: str
    licence: Annotated[str, Field(description="of the weights, an SPDX identifier; absent if trained here")] = ""
    aliases: Annotated[list[str], Field(description="further names that this server knows it by")]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelFacts]


class IndexFacts(BaseModel):
    id: str
    model: str
    images: Annotated[int, Field(ge=0)]


class IndexList(BaseModel):
    object: Literal["list"]
    data: list[IndexFacts]


class ErrorDetail(BaseModel):
    code: str
    message: str
    param: Annotated[str | None, Field(description="the field at fault")]
    index: Annotated[int | None, Field(description="the image at fault")]
    request_id: str


class Error(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


Some = TypeVar("Some", bound=Message)


def from_query(kind: type[Some], pairs: Iterable[tuple[str, str]]) -> Some:
    """A query as a message. Raises Refused (400) for its first fault, which may be a repeated parameter."""
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise Refused(400, f"{name[:100]}: sent more than once; send one value", param=name[:100])
        values[name] = value
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
