"""Results for the tests of tables and cards."""

from eval.result import Result, Row

ROW: Row = {
    "key": "knn/digits", "protocol": "k-NN, k = 20", "protocol_version": 1, "metric": "top-1 accuracy", "unit": "share",
    "encoder": "e", "encoder_sha256": "e" * 8, "weights_sha256": "", "feature": "backbone", "image_size": 8, "dim": 4,
    "dataset": "digits", "value": 0.5, "ci95": None, "n_train": 10, "n_test": 10, "data_sha256": ["a", "b"],
    "collapsed": False, "unseen": 0, "unlabelled": 0, "skipped": 0, "duplicates": 0,
}  # fmt: skip


def row(encoder: str, value: float | None, **entries: object) -> Row:
    """A row of an encoder as cards have it; `entries` replace others."""
    return (
        ROW
        | {"key": f"knn/digits/{encoder}", "encoder": encoder, "encoder_sha256": encoder * 8}
        | {"value": value}
        | entries
    )


def result(encoder: str, value: float | None, **entries: object) -> Result:
    """The result of `row`."""
    return Result.from_row(row(encoder, value, **entries), where="a test")
