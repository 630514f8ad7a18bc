"""Runs circuits on a backend or by a primitive, one job or batch at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qiskit.exceptions import QiskitError

from coda_executor import Device, ExecutionResult, ExecutorError, NativeGateIR, Unsupported
from coda_qiskit.circuits import REGISTER, Compiler, keys_of
from coda_qiskit.errors import explain

log = logging.getLogger("coda_qiskit")



class BackendRunner:
    """Runs circuits by `backend.run`."""

    def __init__(self, backend: Any, options: Mapping[str, Any]) -> None:
        self.backend = backend
        self.options = options

    def submit(self, circuits: Sequence[Any], shots: int) -> Any:
        # Not every provider takes a list.
        what = circuits[0] if len(circuits) == 1 else list(circuits)
        return self.backend.run(what, shots=shots, **self.options)

    def counts(self, result: Any, index: int) -> Mapping[str, Any]:
        experiment = result.results[index] if getattr(result, "results", None) else None
        if not getattr(experiment, "success", getattr(result, "success", True)):
            reason = getattr(experiment, "status", None) or getattr(result, "status", None)
            raise ExecutorError(f"the backend failed: {reason}")
        if not hasattr(result, "get_counts"):
            raise ExecutorError(f"the backend returned {type(result).__name__} as its result, which has no get_counts")
        try:
            counts: Mapping[str, Any] = result.get_counts(index)
        except QiskitError:
            # Some backends tell the outcome of each shot, and nothing else.
            shots = outcomes(result, index)
            if not shots:
                raise
            return Counter(shots)
        return counts


def outcomes(result: Any, index: int) -> list[str]:
    """The outcome of each shot; none where the backend doesn't tell."""
    try:
        return list(result.get_memory(index))
    except (QiskitError, AttributeError):
        return []


class SamplerRunner:
    """Runs circuits by a SamplerV2."""

    def __init__(self, sampler: Any, options: Mapping[str, Any]) -> None:
        self.sampler = sampler
        self.options = options

    def submit(self, circuits: Sequence[Any], shots: int) -> Any:
        return self.sampler.run([(circuit,) for circuit in circuits], shots=shots, **self.options)

    def counts(self, result: Any, index: int) -> Mapping[str, Any]:
        counts: Mapping[str, Any] = getattr(result[index].data, REGISTER).get_counts()
        return counts


class QiskitExecutor:
    """Runs circuits on one backend, one job or batch at a time."""

    def __init__(self, runner: BackendRunner | SamplerRunner, compiler: Compiler, device: Device) -> None:
        self.runner = runner
        self.compiler = compiler
        self.device = device
        # The provider's job, and whether it is to be cancelled: shared with the thread that submits it.
        self.lock = threading.Lock()
        self.job: Any = None
        self.is_cancelled = False
        self.has_told_cancel = False

    async def run(self, ir: NativeGateIR, shots: int) -> ExecutionResult:
        self.begin()
        (result,) = await self.execute([ir], shots)
        if isinstance(result, Exception):
            raise result
        return result

    async def batch_run(self, jobs: Sequence[tuple[NativeGateIR, int]]) -> list[ExecutionResult | Exception]:
        """Jobs with equal shots are one job of the provider."""
        results: dict[int, ExecutionResult | Exception] = {}
        self.begin()
        for shots in dict.fromkeys(shots for _, shots in jobs):
            group = [index for index, job in enumerate(jobs) if job[1] == shots]
            # A batch is cancelled as a whole: no further group of it is submitted.
            if self.is_cancelled:
                raise asyncio.CancelledError
            try:
                done = await self.execute([jobs[index][0] for index in group], shots)
            except Exception as error:
                # The host then runs the jobs one by one; not when some have been run.
                if not results:
                    raise
                done = [error] * len(group)
            results.update(zip(group, done))
        return [results[index] for index in range(len(jobs))]

    async def cancel_current_job(self) -> None:
        with self.lock:
            self.is_cancelled = True
            job = self.job
        if job is not None:
            await asyncio.to_thread(self.cancel, job)

    def begin(self) -> None:
        """A cancel concerns one run or batch."""
        with self.lock:
            self.job, self.is_cancelled = None, False

    async def execute(self, circuits: Sequence[NativeGateIR], shots: int) -> list[ExecutionResult | Exception]:
        """Each circuit's result or error, in order."""
        with self.lock:
            self.job = None
        # Providers block: the loop must stay free for cancels.
        return await asyncio.to_thread(self.execute_blocking, circuits, shots)

    def execute_blocking(self, circuits: Sequence[NativeGateIR], shots: int) -> list[ExecutionResult | Exception]:
        results: list[ExecutionResult | Exception | None] = [None] * len(circuits)
        compiled: dict[int, Any] = {}
        for index, ir in enumerate(circuits):
            try:
                if ir.target not in self.device.targets:
                    takes = ", ".join(self.device.targets)
                    raise Unsupported(f"{self.device.name} takes circuits of {takes}, and this one is of {ir.target}")
                circuit = self.compiler.compile(ir)
            except Exception as error:
                results[index] = error
                continue
            if ir.measurements:
                compiled[index] = circuit
            else:
                # Nothing is asked of the device, and providers refuse circuits without measurements.
                results[index] = ExecutionResult({"": shots}, 0.0, shots)
        if compiled:
            start = time.perf_counter()
            answer = self.answer(list(compiled.values()), shots)
            elapsed = 1e3 * (time.perf_counter() - start)
            # Providers that tell the time on the device leave out the queue.
            taken = getattr(answer, "time_taken", None)
            if isinstance(taken, (int, float)) and taken > 0:
                elapsed = 1e3 * taken
            for place, index in enumerate(compiled):
                try:
                    counts = keys_of(circuits[index], self.runner.counts(answer, place))
                    if not any(counts.values()):
                        raise ExecutorError(f"{self.device.name} returned no counts")
                    results[index] = ExecutionResult(counts, elapsed / len(compiled), sum(counts.values()))
                except Exception as error:
                    results[index] = explain(error, self.device.name)
        return [result for result in results if result is not None]

    def answer(self, circuits: Sequence[Any], shots: int) -> Any:
        """The provider's result for circuits that are compiled."""
        with self.lock:
            if self.is_cancelled:
                raise ExecutorError("the run was cancelled before it was submitted")
        try:
            job = self.runner.submit(circuits, shots)
            with self.lock:
                self.job, is_cancelled = job, self.is_cancelled
            log.info("the job is %s of %s", job_id(job), self.device.name)
            if is_cancelled:
                self.cancel(job)
            return job.result()
        except Exception as error:
            raise explain(error, self.device.name) from error
        finally:
            with self.lock:
                self.job = None

    def cancel(self, job: Any) -> None:
        try:
            job.cancel()
        except Exception as error:
            if not self.has_told_cancel:
                self.has_told_cancel = True
                log.warning("%s can't cancel its jobs, so a cancelled one is waited for: %r", self.device.name, error)


def job_id(job: Any) -> str:
    try:
        return str(job.job_id())
    except Exception as error:
        return f"without an id ({error!r})"
