"""What the commands of this layer share."""

from zoo.errors import BadData


def at_least_one(**numbers: int | None) -> None:
    """Raises BadData, with the name of the first number that is below 1; None stands for no limit."""
    for flag, number in numbers.items():
        if number is not None and number < 1:
            raise BadData(f"{flag} = {number}; at least 1 is needed")
