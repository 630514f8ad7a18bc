"""An executor for measuring the Python node: all zeros, after BENCH_MS milliseconds a job."""

import asyncio
import os

from coda_node.server.executor import ExecutionResult

SECONDS = float(os.environ.get("BENCH_MS", "0")) / 1000


def zeros(ir, shots):
    return ExecutionResult({"0" * len(ir.measurements): shots}, SECONDS * 1000, shots)


class Single:
    async def run(self, ir, shots):
        if SECONDS:
            await asyncio.sleep(SECONDS)
        return zeros(ir, shots)


class Batch(Single):
    async def batch_run(self, jobs):
        if SECONDS:
            await asyncio.sleep(SECONDS)
        return [zeros(ir, shots) for ir, shots in jobs]


def create_executor():
    return Batch() if os.environ.get("BENCH_BATCH") == "true" else Single()
