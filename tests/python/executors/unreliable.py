"""An executor that fails in one run in ten, at random, in each way that costs its process. It records its runs."""

import asyncio
import ctypes
import os
import random
import sys
import time

from coda_node.server.executor import ExecutionResult


def record(line):
    with open(os.environ["UNRELIABLE_RECORD"], "a") as file:
        file.write(f"{line}\n")


async def hang():
    await asyncio.sleep(600)


async def block():
    time.sleep(600)


async def segfault():
    ctypes.string_at(0)


async def leave():
    sys.exit(1)


async def end():
    os._exit(0)


class Unreliable:
    async def run(self, ir, shots):
        # The circuits of the load carry the job's id.
        job = ir.metadata.source_hash
        record(f"start {job}")
        if random.random() < 0.1:
            await random.choice([hang, block, segfault, leave, end])()
        record(f"end {job}")
        return ExecutionResult(counts={"0" * len(ir.measurements): shots}, execution_time_ms=1.0, shots_completed=shots)


def create_executor(settings):
    return Unreliable()
