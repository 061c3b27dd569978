"""How a training process starts: accelerate as its launcher asks for it, and the CPU threads of its share."""

import sys

import torch
from accelerate import Accelerator

from zoo.errors import ZooError
from zoo.processes import check_launch, cpu_threads, starting


def new_accelerator() -> Accelerator:
    """The accelerator that `accelerate launch` or its configuration file asks for.

    Raises:
        ZooError: If that cannot be had.
    """
    with starting():
        no_device = not torch.accelerator.is_available()
        accelerator = Accelerator(cpu=no_device)  # not found out by itself: each process would count as a single one
    check_launch(accelerator.num_processes)
    precision, device = accelerator.mixed_precision, accelerator.device.type
    if precision != "no" and not accelerator.native_amp:  # accelerate would compute in float32 without a warning
        raise ZooError(f"mixed precision {precision} is not computed on {device}: choose --mixed_precision bf16 or no")
    n = accelerator.gradient_accumulation_steps
    if n != 1:
        raise ZooError(
            f"gradient accumulation over {n} batches does not enlarge the negatives: each would be contrasted with "
            "itself alone. Leave it at 1; a larger --batch-size with --chunk fits the memory and keeps the loss"
        )
    return accelerator


def set_threads(asked: int | None, accelerator: Accelerator) -> None:
    """Let this process compute with its share of the machine's cores, and report how many threads that is."""
    threads = cpu_threads(asked, processes=accelerator.num_processes)
    torch.set_num_threads(threads.number)
    if accelerator.is_main_process and accelerator.device.type == "cpu":
        print(f"CPU threads of each process: {threads.number} ({threads.reason})", file=sys.stderr)
