"""Executors of the tests: what a run does is named by the circuit's `source_hash`."""

import asyncio
import ctypes
import itertools
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, namedtuple
from types import SimpleNamespace

import numpy as np

from coda_node.errors import ConfigError
from coda_node.server.executor import ExecutionResult
from coda_node.server.ir import NativeGateIR

log = logging.getLogger("lab")


def result(counts, ms=1.5, shots=None, **_):
    return ExecutionResult(counts=counts, execution_time_ms=ms, shots_completed=shots)


def zeros(ir):
    return "0" * len(ir.measurements)


def note(line):
    """Appends to the file that the test reads."""
    with open(os.environ["LAB_NOTES"], "a") as file:
        file.write(f"{line}\n")


class Endless(dict):
    """Counts without an end, as of a broken reader."""

    def items(self):
        return zip(itertools.repeat("0" * 1_000_000), itertools.repeat(1))


class Lazy:
    """A result that is computed when it is read, and can't be."""

    @property
    def counts(self):
        raise ValueError("the readout was lost")


class Exiting:
    """A result that ends the process when it is read."""

    @property
    def counts(self):
        sys.exit(4)


Tuple = namedtuple("Tuple", "counts execution_time_ms shots_completed")


def results(mode, ir, shots):
    """Results of every kind."""
    key = zeros(ir)
    return {
        "numpy": lambda: result({np.str_(key): np.int64(shots)}, np.float32(2.5), np.int32(shots)),
        "counter": lambda: result(Counter({key: shots}), 3, shots),
        "whole_floats": lambda: result({key: float(shots)}, 1.0, float(shots)),
        "bools": lambda: result({key: True, "1" * len(key): np.bool_(False)}, 1.0, 1),
        "namedtuple": lambda: Tuple({key: shots}, 1.0, shots),
        "namespace": lambda: SimpleNamespace(counts={key: shots}, execution_time_ms=None, shots_completed=None),
        "lost": lambda: result({key: shots - 3}, 1.0, shots),
        "empty": lambda: result({}, 1.0, shots),
        "fraction": lambda: result({key: 2.5}, 1.0, shots),
        "text_count": lambda: result({key: "7"}, 1.0, shots),
        "huge": lambda: result({key: 2**70}, 1.0, shots),
        "digits": lambda: result({key: 10**5000}, 1.0, shots),
        "huge_time": lambda: result({key: shots}, 10**400, shots),
        "endless": lambda: result(Endless(a=1), 1.0, shots),
        "exiting": Exiting,
        "int_keys": lambda: result({0: shots}, 1.0, shots),
        "bytes_keys": lambda: result({b"00": shots}, 1.0, shots),
        "list_counts": lambda: result([(key, shots)], 1.0, shots),
        "dict_result": lambda: {"counts": {key: shots}},
        "none_result": lambda: None,
        "nan_time": lambda: result({key: shots}, float("nan"), shots),
        "text_time": lambda: result({key: shots}, "soon", shots),
        "wrong_width": lambda: result({key + "0": shots}, 1.0, shots),
        "blank_key": lambda: result({"0 1": shots}, 1.0, shots),
        "negative": lambda: result({key: -1}, 1.0, shots),
        "too_many": lambda: result({key: shots + 1}, 1.0, shots + 1),
        "above_completed": lambda: result({key: shots}, 1.0, shots - 1),
    }.get(mode)


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")


async def bad_group():
    raise ExceptionGroup("two", [Odd(), ValueError("b")])


async def group():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail(ValueError("the innermost")))


async def fail(error):
    raise error


def errors(mode):
    return {
        "value_error": ValueError("qubit 7 is out of calibration"),
        "timeout": TimeoutError("no answer of the AWG"),
        "blank_timeout": TimeoutError(),
        "memory": MemoryError("too large"),
        "not_implemented": NotImplementedError("no cp here"),
        "config": ConfigError("no site"),
        "key": KeyError("q7"),
        "surrogate": ValueError("a \udcff b"),
        "odd": Odd(),
        "secret": ValueError("login with hunter22 failed"),
        "long": ValueError("x" * 20_000),
    }.get(mode)


class Lab:
    """Runs what the circuit's source_hash asks for; anything else is all zeros."""

    async def run(self, ir: NativeGateIR, shots: int) -> ExecutionResult:
        mode, _, argument = ir.metadata.source_hash.partition(":")
        made = results(mode, ir, shots)
        if made:
            return made()
        error = errors(mode)
        if error:
            raise error
        act = getattr(self, f"do_{mode}", None)
        if act:
            await act(argument)
        return result({zeros(ir): shots}, 1.5, shots)

    async def do_group(self, _):
        await group()

    async def do_bad_group(self, _):
        await bad_group()

    async def do_log_in_handler(self, seconds):
        signal.signal(signal.SIGALRM, lambda *_: log.info("from the handler"))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            log.info("from the run")
        signal.setitimer(signal.ITIMER_REAL, 0)

    async def do_long_line(self, _):
        log.warning("%s", "\udcff" * 60_000)
        log.warning("the line behind it")

    async def do_no_files(self, _):
        """As an executor that leaks descriptors, at its limit: none can be opened any more."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))

    async def do_self_cancel(self, _):
        raise asyncio.CancelledError

    async def do_print(self, word):
        print(f"{word} printed")
        os.write(1, f"{word} written\n".encode())
        subprocess.run(["echo", f"{word} from a child"], check=True)
        print(f"{word} on stderr", file=sys.stderr)
        log.info("%s logged", word)
        warnings.warn(f"{word} warned", stacklevel=1)
        await asyncio.to_thread(log.warning, "%s from a thread", word)

    async def do_exit(self, code):
        sys.exit(int(code))

    async def do_task_exit(self, code):
        task = asyncio.create_task(self.do_exit(code))
        await asyncio.sleep(60)
        del task

    async def do_interrupt(self, _):
        raise KeyboardInterrupt

    async def do_os_exit(self, code):
        os._exit(int(code))

    async def do_segfault(self, _):
        ctypes.string_at(0)

    async def do_sleep(self, seconds):
        note(f"begins {time.monotonic()}")
        try:
            await asyncio.sleep(float(seconds))
        finally:
            note(f"ends {time.monotonic()}")

    async def do_swallow(self, seconds):
        note("begins")
        try:
            await asyncio.sleep(float(seconds))
        except asyncio.CancelledError:
            note("swallowed")

    async def do_turn(self, seconds):
        note("begins")
        try:
            await asyncio.sleep(float(seconds))
        except asyncio.CancelledError as error:
            raise RuntimeError("the cancel became an error") from error

    async def do_block(self, seconds):
        note("begins")
        time.sleep(float(seconds))

    async def do_hold_gil(self, seconds):
        """A C call that keeps the interpreter's lock."""
        note("begins")
        ctypes.PyDLL(None).sleep(int(seconds))

    async def do_thread(self, seconds):
        """A call of the hardware that no cancel of a task ends."""

        def call():
            note(f"begins {time.monotonic()}")
            time.sleep(float(seconds))
            note(f"ends {time.monotonic()}")

        await asyncio.to_thread(call)

    async def do_left_thread(self, seconds):
        """Fails while its thread goes on."""
        threads = asyncio.get_running_loop()
        threads.run_in_executor(None, time.sleep, float(seconds))
        raise ValueError("failed beside its thread")

    async def do_helper(self, _):
        """Leaves a process behind."""
        helper = subprocess.Popen(["sleep", "600"])
        note(f"helper {helper.pid}")

    async def do_terminate(self, _):
        """Helpers must end by `terminate`, so stop signals are neither blocked nor ignored for them."""
        helper = await asyncio.create_subprocess_exec("sleep", "600")
        helper.terminate()
        note(f"terminated {await helper.wait()}")

    async def do_multiprocessing(self, method):
        import multiprocessing

        context = multiprocessing.get_context(method)
        # One that would go on: only a signal ends it.
        helper = context.Process(target=time.sleep, args=(600,))
        helper.start()
        helper.terminate()
        helper.join()
        note(f"{method} terminated {helper.exitcode}")
        with context.Pool(1) as pool:
            note(f"{method} {pool.apply(len, ['four'])}")

    async def do_pid(self, _):
        note(f"pid {os.getpid()}")

    async def do_environment(self, _):
        note(f"prefix {os.environ.get('VIRTUAL_ENV')}")
        note(f"main {sorted(n for n in vars(sys.modules['__main__']) if not n.startswith('__'))}")
        note(f"threads {threading.current_thread() is threading.main_thread()}")
        note(f"secrets {sorted(n for n in os.environ if 'TOKEN' in n.upper() or 'JWT' in n.upper())}")


def create_executor(settings):
    return Lab()


def told(settings):
    """Notes what the factory is given."""
    fields = ("qpu_id", "native_gate_set", "num_qubits", "node_token", "redis_url", "jwt_private_key", "device_config")
    note("told " + " ".join(f"{name}={getattr(settings, name)}" for name in fields))
    return Lab()


class Batches(Lab):
    """Takes batches; the first circuit of one says what it does."""

    async def batch_run(self, jobs):
        note(f"batch of {len(jobs)}")
        mode = jobs[0][0].metadata.source_hash
        if mode == "whole":
            raise ValueError("the batch failed")
        made = [await self.run(ir, shots) for ir, shots in jobs if mode != "mixed"]
        if mode == "short":
            return made[1:]
        if mode == "surplus":
            return [*made, made[0]]
        if mode == "endless":
            return itertools.repeat(made[0])
        if mode == "mixed":
            return [ValueError("the first"), None, Lazy(), *[result({zeros(ir): n}, 1.0, n) for ir, n in jobs[3:]]]
        return (one for one in made)


def batches():
    return Batches()


class Hooked(Lab):
    """With a hook that is called while a run is suspended."""

    async def cancel_current_job(self):
        note("hook")


class SyncHook(Lab):
    def cancel_current_job(self):
        note("hook")


class BadHook(Lab):
    async def cancel_current_job(self):
        note("hook")
        raise RuntimeError("the hook failed")


class Flagged:
    """A driver with a flag that each run clears, as instrument libraries have it: calls must never overlap."""

    def __init__(self):
        self.stop = False

    async def run(self, ir, shots):
        self.stop = False
        await asyncio.to_thread(self.call, float(ir.metadata.source_hash.partition(":")[2] or 0))
        return result({zeros(ir): shots}, 1.0, shots)

    def call(self, seconds):
        note(f"begins {time.monotonic()}")
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop:
            time.sleep(0.005)
        note(f"ends {time.monotonic()}")

    def cancel_current_job(self):
        note("hook")
        # Too late for the flag: the call looks at it again only at its end.


class FlaggedBatches(Flagged):
    """The same with batches, each job a call; a batch of jobs that fail gives up before its call has ended."""

    async def batch_run(self, jobs):
        note(f"batch of {len(jobs)}")
        for ir, _ in jobs:
            mode, _, seconds = ir.metadata.source_hash.partition(":")
            call = asyncio.to_thread(self.call, float(seconds))
            await (asyncio.wait_for(call, 0.1) if mode == "fail" else call)
        return [result({zeros(ir): shots}, 1.0, shots) for ir, shots in jobs]


def endless(settings):
    time.sleep(600)


def raises(settings):
    raise RuntimeError("the cryostat is warm")


def exits(settings):
    sys.exit("no licence")


def with_exit_handler(settings):
    import atexit

    async def background():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note("a background task was cancelled")
            raise

    atexit.register(note, "the session is closed")
    made = Lab()
    made.background = asyncio.get_running_loop().create_task(background())
    return made
