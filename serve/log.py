"""The server's log: one JSON object a line on standard error."""

import json
import logging
import warnings
from datetime import UTC, datetime

logger = logging.getLogger("contrastive_zoo.serve")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        row = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")}
        row |= {"level": record.levelname.lower(), "event": record.getMessage()}
        row |= getattr(record, "fields", {})
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row)


def start_log() -> None:
    """Send the log to standard error, whatever the framework did to logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    logger.handlers, logger.propagate, logger.disabled = [handler], False, False
    logger.setLevel(logging.INFO)
    warnings.filterwarnings("ignore", module="PIL")  # of every odd tag in a picture: no JSON, and kept in memory
