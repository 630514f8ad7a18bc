"""The Python side of an executor's process: drives an executor that was written for coda-node.

The host sends requests on the slot's socket, one at a time, and orders on the control socket; log lines go back on the
events socket. The event loop runs in the main thread and reads the slot; a second thread reads the control socket, so
that an order is answered also while the executor blocks the loop. Frames are those of `worker/frames.rs` and `wire.rs`.

Nothing of the vendor runs before the host asks for the executor's creation, except the installed `coda_node` itself.
Where coda-node is not installed, the carried module `coda_executor` has what executors need of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import fcntl
import gc
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import itertools
import json
import logging
import operator
import os
import reprlib
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
import traceback
import types
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

# Kinds of frames.
CHECK, CREATE, RUN, BATCH, DESTROY = 1, 2, 3, 4, 6
STEP, JOBS, DESTROYED, ORDER, ORDER_DONE, LOG, FINAL = 7, 8, 10, 11, 12, 13, 17

# Levels of log lines.
ERROR, WARN, INFO, DEBUG, TRACE = 1, 2, 3, 4, 5

# Codes of errors, and the stage of a run.
OTHER, CONFIG, UNSUPPORTED, RESOURCES, TIMEOUT, CANCELLED, PANIC, CONTRACT = 0, 1, 2, 3, 6, 7, 8, 9
CODE_NAMES = {OTHER: "Other", CONFIG: "Config", UNSUPPORTED: "Unsupported", RESOURCES: "Resources",
              TIMEOUT: "Timeout", CANCELLED: "Cancelled", PANIC: "Panic", CONTRACT: "Contract"}
STAGE_RUN = 4

# An error's text; the host cuts it again for the sender.
MAX_TEXT = 10_000
# As the host reads them: bytes of an answer.
MAX_ANSWER = 256 << 20
# More than any device of the host has, by far.
MAX_EDGES = 10_000
MAX_NUMBER = 1_000_000_000
# Results beyond those of a batch that are counted, for the error that tells of them.
MAX_SURPLUS = 1_000
# A line of the log that is longer would not fit into an event.
MAX_LINE = 60_000
# How long a cancel may wait for the loop before the log names the line that blocks it.
BLOCKED_AFTER_SEC = 1.0
CREATING_EVERY_SEC = 10.0
# How long tasks may take to end when the executor is destroyed.
TASKS_END_SEC = 2.0
# How long printed lines may take to be read by the host before a run is answered.
OUTPUT_READ_SEC = 0.05
# Exit status when the loop ends for a reason of the executor's.
LOOP_ENDED = 70


def clean(value: str) -> str:
    """The text with everything that UTF-8 lacks written out."""
    return value.encode("utf-8", "backslashreplace").decode()


def text(value: str, most: int | None = None) -> bytes:
    """A text on the wire; cut behind so many bytes, of which one character may need six."""
    data = value.encode("utf-8", "backslashreplace")
    if most is not None and len(data) > most:
        data = data[:most].decode("utf-8", "ignore").encode()
    return struct.pack("<Q", len(data)) + data


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack("<IB", len(body) + 1, kind) + body


def json_frame(kind: int, value: object) -> bytes:
    return frame(kind, text(json.dumps(value, ensure_ascii=False)))


def receive(sock: socket.socket, count: int) -> bytes:
    """Reads so many bytes; ends the process when the host is gone."""
    data = bytearray()
    while len(data) < count:
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


def receive_frame(sock: socket.socket) -> tuple[int, bytes]:
    (length,) = struct.unpack("<I", receive(sock, 4))
    data = receive(sock, length)
    return data[0], data[1:]


class Reader:
    """The body of a frame, read from its start."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.body, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        length = self.number("<Q")
        data = self.body[self.at : self.at + length]
        self.at += length
        return data.decode()


class Refused(Exception):
    """The executor can't be made in this interpreter; what to do about it."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class Job:
    """A circuit to be run."""

    def __init__(self, reader: Reader) -> None:
        self.id = reader.text()
        self.shots = reader.number("<I")
        self.circuit = reader.text()
        self.is_cancelled = False


# The job that a task, a thread's call or a log line belongs to.
current_job: contextvars.ContextVar[Job | None] = contextvars.ContextVar("coda_host_job", default=None)
# The calls in other threads that a run, of one job or of a batch, has begun and not ended.
CallSet: TypeAlias = "set[Future[Any]]"
current_calls: contextvars.ContextVar[CallSet | None] = contextvars.ContextVar("coda_host_calls", default=None)


class Log(logging.Handler):
    """Sends log lines to the host; the root handler of `logging`."""

    def __init__(self, events: socket.socket, most_verbose: int) -> None:
        super().__init__()
        self.events: socket.socket | None = events
        self.most_verbose = most_verbose
        self.sending = threading.Lock()
        # Lines that wait for the thread that sends now. A signal handler or a finalizer may log in the middle of a line of its
        # own thread, which must not wait for itself. Bounded, as the host limits lines too.
        self.waiting: deque[bytes] = deque(maxlen=10_000)
        self.has_told_lost_shots = False
        # Takes out what executors have declared to be secret.
        self.mask: Callable[[str], str] = str

    def say(self, level: int, message: str, job_id: str | None = None) -> None:
        if level > self.most_verbose:
            return
        if job_id is None:
            job = current_job.get()
            job_id = job.id if job else ""
        if self.events is None:
            sys.stderr.write(message + "\n")
            return
        body = struct.pack("<I", level) + text(job_id) + text(self.mask(message), MAX_LINE)
        self.waiting.append(frame(LOG, body))
        # Asked again after the release: a line may have come between the last look and that.
        while self.waiting and self.sending.acquire(blocking=False):
            try:
                while self.waiting:
                    self.events.sendall(self.waiting.popleft())
            except OSError:
                # The host is gone, and this process with it.
                self.waiting.clear()
            finally:
                self.sending.release()

    def tell_lost_shots(self, counted: int, completed: int) -> None:
        if not self.has_told_lost_shots:
            self.has_told_lost_shots = True
            self.say(INFO, f"the counts add up to {counted} of {completed} shots, which is delivered; told once")

    def leave(self) -> None:
        """In a forked child, whose lines would get between those of its parent."""
        self.events = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = f"{record.name}: {self.format(record)}"
        except Exception as error:
            message = f"{record.name}: a log line could not be formatted: {error!r}"
        levels = [(logging.ERROR, ERROR), (logging.WARNING, WARN), (logging.INFO, INFO), (logging.DEBUG, DEBUG)]
        self.say(next((ours for theirs, ours in levels if record.levelno >= theirs), TRACE), message)

    def traceback(self, what: str, error: BaseException, job_id: str | None = None) -> None:
        lines = "".join(traceback.format_exception(error)).rstrip()
        self.say(ERROR, f"{what}\n{lines}", job_id)


# --- the vendor's packages


class LightPackage(types.ModuleType):
    """A package whose `__init__` runs when something of it is asked for.

    That of coda_node imports a whole web server, which executors don't use.
    """

    LIGHT = {"coda_node": {"errors", "server"}, "coda_node.server": {"config", "executor", "ir", "qasm"}}

    def __getattr__(self, name: str) -> Any:
        package = self.__name__
        if name in LightPackage.LIGHT[package]:
            return importlib.import_module(f"{package}.{name}")
        if (package, name) == ("coda_node", "CodaError"):
            return importlib.import_module("coda_node.errors").CodaError
        is_machinery = name.startswith("__") and name not in ("__version__", "__all__")
        spec = self.__spec__
        if is_machinery or self.__dict__.get("_has_run") or spec is None or spec.loader is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        self.__dict__["_has_run"] = True
        spec.loader.exec_module(self)
        return getattr(self, name)


def put_light_packages() -> None:
    """Puts light packages in the place of coda_node's own, where nothing has imported those."""
    made = []
    try:
        for name in LightPackage.LIGHT:
            if name in sys.modules:
                return
            spec = importlib.util.find_spec(name)
            if spec is None or spec.submodule_search_locations is None:
                raise ImportError(name)
            package = LightPackage(name)
            package.__spec__ = spec
            package.__file__ = spec.origin
            package.__loader__ = spec.loader
            package.__path__ = list(spec.submodule_search_locations)
            package.__package__ = name
            sys.modules[name] = package
            made.append(name)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, package)
        for name in ("ir", "config", "executor"):
            importlib.import_module(f"coda_node.server.{name}")
    except Exception:
        # Another layout than that of the versions known: the plain import is always right.
        for name in [m for m in sys.modules if m == "coda_node" or m.startswith("coda_node.")]:
            if made:
                del sys.modules[name]


class CarriedModules:
    """Imports the modules that the host carries. They are of the host's version, so they precede installed copies."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self.sources:
            return None
        is_package = any(other.startswith(f"{name}.") for other in self.sources)
        origin = f"<coda-host {name}>"
        return importlib.util.spec_from_loader(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        source = self.sources[module.__name__]
        exec(compile(source, f"<coda-host {module.__name__}>", "exec"), module.__dict__)

    def get_source(self, name: str) -> str:
        """So that tracebacks show the lines."""
        return self.sources[name]


class Node:
    """What executors use of the installed coda_node, or of `coda_executor` where it is not installed."""

    def __init__(self, own: types.ModuleType) -> None:
        self.own = own
        if importlib.util.find_spec("coda_node") is None:
            self.circuit, self.settings_class = own.NativeGateIR, own.Settings
            self.config_error, self.executor_error = own.ConfigError, own.ExecutorError
            self.version = ""
            return
        put_light_packages()
        try:
            self.circuit = importlib.import_module("coda_node.server.ir").NativeGateIR
            self.settings_class = importlib.import_module("coda_node.server.config").Settings
            errors = importlib.import_module("coda_node.errors")
        except BaseException as error:
            raise Refused(
                f"coda-node can't be imported: {type(error).__name__}: {error}",
                f"try it: {sys.executable} -c 'import coda_node.server.ir'",
            ) from error
        self.config_error: type[BaseException] = getattr(errors, "ConfigError", LookupError)
        self.executor_error: type[Exception] = getattr(errors, "ExecutorError", RuntimeError)
        self.version = distribution_version("coda-node")

    def settings(self, values: dict[str, Any]) -> Any:
        """What a factory is given. Empty variables count as unset for the host; here they would be read."""
        for name in [n for n, v in os.environ.items() if n.upper().startswith("CODA_") and not v]:
            del os.environ[name]
        known = getattr(self.settings_class, "model_fields", None) or self.settings_class.__dataclass_fields__
        return self.settings_class(**{name: value for name, value in values.items() if name in known})


def distribution_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def distribution_of(package: str) -> tuple[str, str]:
    """Name and version of the distribution that holds a top-level package; empty when none does."""
    try:
        names = importlib.metadata.packages_distributions().get(package) or [package]
        found = importlib.metadata.distribution(names[0])
        return str(found.metadata["Name"]), str(found.version)
    except Exception:
        return "", ""


# --- which executor


def discover() -> dict[str, str]:
    """Factories that packages offer by coda-node's convention, with their files. Imports no package."""
    found: dict[str, str] = {}
    standard = {os.path.realpath(os.path.dirname(module.__file__ or "")) for module in (os, json)}
    endings = ("executor_factory.py", os.path.join("executor_factory", "__init__.py"))

    def offer(package: str, directory: str) -> None:
        if not package.isidentifier() or package.startswith("_") or package == "coda_node":
            return
        extensions = (f"executor_factory{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
        for name in (*endings, *extensions):
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                found.setdefault(f"{package}.executor_factory:create_executor", path)

    for entry in sys.path:
        if os.path.realpath(entry) in standard or not os.path.isdir(entry):
            continue
        for package in sorted(os.listdir(entry)):
            offer(package, os.path.join(entry, package))
    # Editable installs of setuptools are import hooks, which no directory shows.
    for distribution in importlib.metadata.distributions():
        for package in (distribution.read_text("top_level.txt") or "").split():
            try:
                spec = importlib.util.find_spec(package) if package.isidentifier() else None
            except (ImportError, AttributeError, ValueError):
                continue
            for directory in (spec.submodule_search_locations or []) if spec else []:
                offer(package, directory)
    return found


def factory_of(spec: dict[str, Any], log: Log) -> str:
    """The factory that is configured, or the only one there is."""
    if spec["factory"] is not None:
        return str(spec["factory"])
    found = discover()
    hint = "choose one with 'executor_factory: <module>:<attribute>' in device.yaml (or CODA_EXECUTOR_FACTORY)"
    if not found:
        raise Refused(
            f"no executor is configured, and no package of {sys.executable} has a module executor_factory",
            "set 'executor_factory: <module>:<attribute>' in device.yaml (or CODA_EXECUTOR_FACTORY)",
        )
    if len(found) > 1:
        names = ", ".join(f"{factory} ({path})" for factory, path in sorted(found.items()))
        raise Refused(f"no executor is configured, and several packages offer one: {names}", hint)
    ((factory, path),) = found.items()
    log.say(INFO, f"no executor is configured: using {factory}, which is in {path}")
    return factory


def check(spec: dict[str, Any], log: Log) -> tuple[Node, dict[str, Any]]:
    """Makes sure that an executor can be made, without running anything of the vendor's."""
    sys.meta_path.insert(0, CarriedModules(spec["modules"]))
    own = importlib.import_module("coda_executor")
    own._read_by_host = (spec["config_path"], spec["config"]) if isinstance(spec["config"], dict) else None
    log.mask = own._masked
    node = Node(own)
    factory = factory_of(spec, log)
    spec["factory"] = spec["settings"]["executor_factory"] = factory
    module = factory.partition(":")[0]
    package = module.partition(".")[0]
    try:
        is_there = importlib.util.find_spec(package) is not None
    except (ImportError, ValueError, AttributeError):
        is_there = False
    if not is_there:
        raise Refused(
            f"the executor factory is {factory!r}, and {sys.executable} has no package {package!r}",
            f"install the vendor's package for it ({sys.executable} -m pip install ...), or set "
            "CODA_EXECUTOR_PYTHON to the interpreter that has it",
        )
    if spec["config_path"]:
        try:
            Path(spec["config_path"]).read_bytes()
        except OSError as error:
            raise Refused(
                f"the device config {spec['config_path']} can't be read: {error.strerror}",
                "let the account of the executor's process read it",
            ) from error
    name, version = distribution_of(package)
    facts = {
        "factory": factory,
        "package": name or package,
        "package_version": version,
        "coda_node": node.version,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "hooks": inspect_hooks(factory) if spec["inspect"] else None,
    }
    return node, facts


def load(factory: str) -> Any:
    """The target of a factory's path. Runs the vendor's module."""
    module, _, attribute = factory.partition(":")
    return getattr(importlib.import_module(module), attribute)


def inspect_hooks(factory: str) -> str:
    """The optional methods of the executor, as far as they can be told without creating it."""
    try:
        target = load(factory)
    except BaseException as error:
        raise Refused(
            f"the factory {factory!r} can't be imported: {describe(error)}", "tell the vendor, or correct it"
        ) from error
    made = target if hasattr(target, "run") else getattr(target, "__annotations__", {}).get("return")
    if isinstance(made, str):
        made = getattr(sys.modules.get(getattr(target, "__module__", "")), made, None)
    if made is None or not hasattr(made, "run"):
        return "known once it is created"
    names = [name for name in ("batch_run", "cancel_current_job") if callable(getattr(made, name, None))]
    names += ["device"] if hasattr(made, "device") else []
    return ", ".join(names) or "none"


def make_executor(factory: str, settings: Any, node: Node) -> Any:
    """The executor, by the rules of coda-node's own loader."""
    target = load(factory)
    if hasattr(target, "run"):
        run = inspect.getattr_static(target, "run", None)
        # A class with an ordinary method is meant to be instantiated, though coda-node doesn't.
        if not inspect.isclass(target) or isinstance(run, (staticmethod, classmethod)):
            return target
    if not callable(target):
        raise node.executor_error(f"Executor target {factory!r} is not callable")
    made = target(settings) if inspect.signature(target).parameters else target()
    if not hasattr(made, "run"):
        if inspect.iscoroutine(made):
            made.close()
        raise node.executor_error(f"Executor factory {factory!r} did not return a runner")
    return made


class BadDevice(Exception):
    """A device that can't be read; says what it has."""


def read_edges(pairs: Any, name: str) -> list[list[int]]:
    """The edges of a device: pairs of qubits of any kind of whole number, in any iterable."""
    if not isinstance(pairs, Iterable):
        raise BadDevice(f"the executor's device has {name} of type {type(pairs).__name__}, expected pairs of qubits")
    edges: list[list[int]] = []
    for pair in pairs:
        if len(edges) == MAX_EDGES:
            raise BadDevice(f"the executor's device has more than {MAX_EDGES} {name}")
        try:
            first, second = pair
            edge = [operator.index(first), operator.index(second)]
            if max(map(abs, edge)) > MAX_NUMBER:
                raise ValueError
            edges.append(edge)
        except (TypeError, ValueError):
            text = reprlib.repr(pair)
            raise BadDevice(f"the executor's device has {text} in {name}, expected a pair of qubits") from None
    return edges


def describe_device(executor: Any, node: Node) -> dict[str, Any]:
    """What the executor says of its device: all of `coda_executor.Device`, of any other object what coda-node reads."""
    device = getattr(executor, "device", None)
    is_full = isinstance(device, node.own.Device)
    edges, is_directed = None, False
    if device is not None:
        directed = getattr(device, "directed_edges", None)
        is_directed = bool(directed)
        name = "directed_edges" if is_directed else "logical_edges"
        pairs: Any = directed if is_directed else device.logical_edges
        edges = None if is_full and pairs is None else read_edges(pairs, name)
    qubits = getattr(device, "num_qubits", None)
    try:
        qubits = None if qubits is None else operator.index(qubits)
    except TypeError:
        qubits = None
    if qubits is not None and abs(qubits) > MAX_NUMBER:
        raise BadDevice(f"the executor's device has num_qubits {shown_number(qubits)}, which is too large")
    return {
        "edges": edges,
        "directed": is_directed,
        "num_qubits": qubits,
        "batch_run": callable(getattr(executor, "batch_run", None)),
        "stated": {
            "name": str(device.name),
            "targets": [str(target) for target in device.targets],
            "max_shots": None if device.max_shots is None else operator.index(device.max_shots),
        }
        if is_full
        else None,
    }


# --- results and errors


class BadResult(Exception):
    """A result that can't be read; says what came."""


def whole(value: Any, name: str) -> int:
    """A whole number of any kind: Python's, numpy's, a float without a fraction."""
    try:
        return operator.index(value)
    except TypeError:
        pass
    if type(value).__name__ in ("bool", "bool_"):
        return int(value)
    try:
        number = None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = None
    if number is None or not number.is_integer():
        kind = type(value).__name__
        raise BadResult(f"the executor returned {name} {value!r} of type {kind}, expected a whole number")
    return int(number)


def shown_number(value: object) -> str:
    """A number for an error; Python refuses to write integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"of {value.bit_length()} bits"
    return repr(value)


def signed(value: int, name: str) -> bytes:
    try:
        return struct.pack("<q", value)
    except struct.error:
        raise BadResult(f"the executor returned {name} {shown_number(value)}, which is too large") from None


def good_answer(result: Any, reverse: bool, log: Log | None = None) -> bytes:
    """An executor's result as an answer. Whether it is a right one is judged by the host."""
    parts = []
    for name in ("counts", "execution_time_ms", "shots_completed"):
        try:
            parts.append(getattr(result, name))
        except AttributeError:
            raise BadResult(
                f"the executor returned {type(result).__name__}, which has no {name}; expected an ExecutionResult"
            ) from None
    counts, ms, shots = parts
    if not isinstance(counts, Mapping):
        raise BadResult(f"the executor returned counts of type {type(counts).__name__}, expected a mapping")
    entries, total, size = [], 0, 0
    for key, count in counts.items():
        if not isinstance(key, str):
            raise BadResult(
                f"the executor returned the key {key!r} of type {type(key).__name__}, expected text of 0 and 1"
            )
        bits = key[::-1] if reverse else key
        number = whole(count, f"for key {key!r} the count")
        total += number
        entry = text(bits) + signed(number, "the count")
        size += len(entry)
        if size > MAX_ANSWER:
            raise BadResult(f"the executor returned counts of more than {MAX_ANSWER >> 20} MiB")
        entries.append(entry)
    try:
        time_ms = None if ms is None else float(ms)
    except (TypeError, ValueError, OverflowError):
        raise BadResult(f"the executor returned execution_time_ms {shown_number(ms)}, expected a number") from None
    completed = None if shots is None else whole(shots, "shots_completed")
    if log is not None and completed is not None and total < completed:
        log.tell_lost_shots(total, completed)
    flags = (time_ms is not None) | (completed is not None) << 1
    head = struct.pack("<HHd", 1, flags, time_ms or 0.0) + signed(completed or 0, "shots_completed")
    return head + struct.pack("<Q", len(entries)) + b"".join(entries)


def error_body(code: int, message: str) -> bytes:
    return struct.pack("<III", code, STAGE_RUN, 0) + text(message, MAX_TEXT)


def bad_answer(code: int, message: str) -> bytes:
    return struct.pack("<H", 2) + error_body(code, message)


def message_of(error: BaseException) -> str:
    """An exception's own text; blank where it has none, or can't make it."""
    try:
        return str(error)
    except Exception:
        return ""


def describe(error: BaseException) -> str:
    """An exception in one text."""
    name, message = type(error).__name__, message_of(error)
    if isinstance(error, BaseExceptionGroup):
        leaf: BaseException = error
        while isinstance(leaf, BaseExceptionGroup) and leaf.exceptions:
            leaf = leaf.exceptions[0]
        return f"{message}: {type(leaf).__name__}: {message_of(leaf)}"
    if not message.strip():
        return name
    return f"{name}: {message}" if isinstance(error, KeyError) else message


def code_of(error: BaseException, node: Node) -> int:
    classes = [(TimeoutError, TIMEOUT), (MemoryError, RESOURCES), (NotImplementedError, UNSUPPORTED),
               (node.config_error, CONFIG), (node.own.ConfigError, CONFIG)]
    return next((code for kind, code in classes if isinstance(error, kind)), OTHER)


def end_of_process(error: BaseException) -> str:
    """What the sender of a job is told when the executor ends its process."""
    how = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else type(error).__name__
    return f"the executor ended its process: {how}"


# --- the running executor


class Calls(ThreadPoolExecutor):
    """The loop's threads: notes for each call which run began it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = super().submit(fn, *args, **kwargs)
        calls = current_calls.get()
        if calls is not None:
            calls.add(call)
            call.add_done_callback(calls.discard)
        return call


class Bridge:
    """One executor, and the job or batch that it runs."""

    def __init__(self, spec: dict[str, Any], node: Node, log: Log, sockets: list[socket.socket]) -> None:
        self.spec = spec
        self.node = node
        self.log = log
        self.control, _, self.slot = sockets
        self.loop = asyncio.new_event_loop()
        self.executor: Any = None
        self.buffer = bytearray()
        # What runs now.
        self.jobs: list[Job] = []
        self.run: asyncio.Task[Any] | None = None
        self.is_cancelling = False
        # Jobs that were cancelled before their request was read, and those that were answered last.
        self.early_cancels: deque[str] = deque(maxlen=16)
        self.answered: set[str] = set()
        # Held while an order is read and scheduled.
        self.taking_order = threading.Lock()
        self.blocked_told: set[str] = set()
        self.background: set[asyncio.Task[Any]] = set()
        self.end = self.loop.create_future()

    def send(self, data: bytes) -> None:
        try:
            self.slot.sendall(data)
        except OSError:
            os._exit(0)

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Starts a task of the bridge's own, and keeps it from being collected."""
        task = self.loop.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        return task

    # --- creation and end

    async def live(self) -> bool:
        """Creates the executor and serves until it is destroyed; False when it could not be created."""
        done = threading.Event()
        threading.Thread(target=self.tell_creating, args=(done,), daemon=True).start()
        try:
            self.executor = make_executor(self.spec["factory"], self.node.settings(self.spec["settings"]), self.node)
            device = describe_device(self.executor, self.node)
        except BaseException as error:
            self.log.traceback("the executor could not be created", error)
            message = self.log.mask(end_of_process(error) if is_end(error) else describe(error))
            code = CODE_NAMES[code_of(error, self.node)]
            if isinstance(error, ModuleNotFoundError) and error.name:
                package = error.name.partition(".")[0].replace("_", "-")
                message += f"; install what has it for this interpreter: {sys.executable} -m pip install {package}"
                code = CODE_NAMES[CONFIG]
            failed = {"code": code, "stage": "Create", "retryable": False, "text": clean(message[:MAX_TEXT])}
            self.send(json_frame(STEP, {"Create": failed}))
            return False
        finally:
            done.set()
        # What was imported stays: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        self.send(json_frame(STEP, {"PythonCreated": device}))
        threading.Thread(target=self.take_orders, name="coda-control", daemon=True).start()
        self.loop.add_reader(self.slot.fileno(), self.on_readable)
        await self.end
        return True

    def tell_creating(self, done: threading.Event) -> None:
        start = time.monotonic()
        while not done.wait(CREATING_EVERY_SEC):
            self.log.say(INFO, f"still creating the executor, for {time.monotonic() - start:.0f} s now", "")

    async def destroy(self) -> None:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks(self.loop) if task is not own]
        main = [task for task in tasks if task.get_name() == "coda-live"]
        others = [task for task in tasks if task not in main]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=TASKS_END_SEC)
        await self.loop.shutdown_asyncgens()
        self.loop.remove_reader(self.slot.fileno())
        self.send(json_frame(DESTROYED, None))
        self.end.set_result(None)

    # --- requests

    def on_readable(self) -> None:
        try:
            data = self.slot.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        self.buffer += data
        if len(self.buffer) < 5:
            return
        (length,) = struct.unpack_from("<I", self.buffer)
        if len(self.buffer) < 4 + length:
            return
        kind, body = self.buffer[4], bytes(self.buffer[5 : 4 + length])
        del self.buffer[: 4 + length]
        reader = Reader(body)
        if kind == RUN:
            self.begin_after_orders([Job(reader)], self.run_one)
        elif kind == BATCH:
            self.begin_after_orders([Job(reader) for _ in range(reader.number("<Q"))], self.run_batch)
        elif kind == DESTROY:
            self.start(self.destroy())
        else:
            self.log.say(ERROR, f"a request of kind {kind}, which Python executors don't know", "")
            os._exit(LOOP_ENDED)

    def begin_after_orders(self, jobs: list[Job], serve: Callable[[], Awaitable[None]]) -> None:
        """Begins behind every order that the host wrote before: a cancel of an ended run must not hit one of the same id."""
        while select.select([self.control], [], [], 0)[0]:
            # The other thread reads it as soon as this one lets it.
            time.sleep(0.0001)
        with self.taking_order:
            # What it has read is scheduled by now.
            self.loop.call_soon(self.begin, jobs, serve)

    def begin(self, jobs: list[Job], serve: Callable[[], Awaitable[None]]) -> None:
        self.jobs, self.run = jobs, None
        for job in jobs:
            if job.id in self.early_cancels:
                job.is_cancelled = True
                self.early_cancels.remove(job.id)
        self.is_cancelling = all(job.is_cancelled for job in jobs)
        self.blocked_told.clear()
        self.start(self.answer(serve))

    async def answer(self, serve: Callable[[], Awaitable[None]]) -> None:
        """A job that is never answered would hold its slot for ever, so whatever goes wrong here ends the process."""
        try:
            await serve()
        except Exception as error:
            self.log.traceback("the bridge could not answer a run, and ends", error)
            os._exit(LOOP_ENDED)

    def circuit(self, job: Job) -> Any:
        try:
            return self.node.circuit.from_json(job.circuit)
        except Exception as error:
            reader = f"coda-node {self.node.version}" if self.node.version else "the host's coda_executor"
            raise Unsupported(f"{reader} refuses the circuit: {describe(error)}") from error

    def start_run(self, call: Callable[[], Any], job: Job | None, calls: CallSet) -> asyncio.Task[Any]:
        """Calls into the executor in a task whose context names the job, and notes its calls in other threads."""

        async def attempt() -> Any:
            try:
                result = call()
                return await result if inspect.isawaitable(result) else result
            except (SystemExit, KeyboardInterrupt) as error:
                # Raised out of a task it would end the loop before the job is answered.
                return Ended(error)

        context = contextvars.copy_context()
        context.run(current_job.set, job)
        context.run(current_calls.set, calls)
        return self.loop.create_task(attempt(), context=context)

    async def run_one(self) -> None:
        (job,) = self.jobs
        is_last = False
        calls: CallSet = set()
        try:
            circuit = self.circuit(job)
            if job.is_cancelled:
                raise asyncio.CancelledError
            self.run = self.start_run(lambda: self.executor.run(circuit, job.shots), job, calls)
            result = await self.run
            if isinstance(result, Ended):
                is_last = True
                answer = bad_answer(PANIC, end_of_process(result.error))
                self.log.traceback("the executor ended its process", result.error, job.id)
            elif self.was_cancelled():
                answer = bad_answer(CANCELLED, "the run was cancelled")
            else:
                answer = good_answer(result, self.spec["reverse_bits"], self.log)
        except BadResult as error:
            answer = bad_answer(CONTRACT, str(error))
        except Unsupported as error:
            answer = bad_answer(UNSUPPORTED, str(error))
        except (SystemExit, KeyboardInterrupt) as error:
            # The run has returned: something in its result did it.
            is_last = True
            answer = bad_answer(PANIC, end_of_process(error))
            self.log.traceback("the executor ended its process", error, job.id)
        except BaseException as error:
            answer = self.failed(error, job)
            is_last = await self.outlasts(calls, job.id) if not self.was_cancelled() else False
        if self.was_cancelled():
            # The device is busy as long as a thread of the run is in a call; the host's grace limits that.
            await self.calls_ended(calls, None)
        self.finish([answer], is_last)

    def was_cancelled(self) -> bool:
        return self.is_cancelling

    def failed(self, error: BaseException, job: Job) -> bytes:
        if self.was_cancelled():
            if not isinstance(error, asyncio.CancelledError):
                self.log.say(INFO, f"raised after its cancel: {describe(error)}", job.id)
            return bad_answer(CANCELLED, "the run was cancelled")
        self.log.traceback("the run failed", error, job.id)
        if isinstance(error, asyncio.CancelledError):
            return bad_answer(OTHER, "the executor cancelled its own run")
        return bad_answer(code_of(error, self.node), self.log.mask(describe(error)))

    async def calls_ended(self, calls: CallSet, limit: float | None) -> bool:
        """Waits until the threads of a run have ended their calls."""
        until = None if limit is None else self.loop.time() + limit
        while calls:
            left = None if until is None else max(until - self.loop.time(), 0)
            if left == 0:
                return False
            running = [asyncio.wrap_future(call) for call in list(calls)]
            for call in running:
                # What it raises belongs to a run that is over, so no one else asks for it.
                call.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait(running, timeout=left)
        return True

    async def outlasts(self, calls: CallSet, job_id: str) -> bool:
        """Whether a call in a thread outlasts its failed run: the next run must not meet it."""
        if await self.calls_ended(calls, self.spec["thread_wait_sec"]):
            return False
        self.log.say(ERROR, "a thread of the failed run does not end; the process is started again", job_id)
        return True

    async def run_batch(self) -> None:
        jobs = self.jobs
        answers: list[bytes | None] = [None] * len(jobs)
        circuits = []
        for index, job in enumerate(jobs):
            try:
                circuits.append((index, self.circuit(job)))
            except Unsupported as error:
                answers[index] = bad_answer(UNSUPPORTED, str(error))
        pairs = [(circuit, jobs[index].shots) for index, circuit in circuits]
        whole_error, surplus, is_last = None, 0, False
        calls: CallSet = set()
        try:
            if self.was_cancelled():
                raise asyncio.CancelledError
            self.run = self.start_run(lambda: self.executor.batch_run(pairs), None, calls)
            results = await self.run
            if isinstance(results, Ended):
                self.log.traceback("the executor ended its process in a batch", results.error, "")
                os._exit(LOOP_ENDED)
            if not isinstance(results, Iterable):
                raise BadResult(f"batch_run returned {type(results).__name__}, expected results in order")
            # A generator may never end.
            results = list(itertools.islice(results, len(circuits) + MAX_SURPLUS))
            surplus = max(len(results) - len(circuits), 0)
            for (index, _), result in zip(circuits, results, strict=False):
                answers[index] = self.batch_answer(result, jobs[index])
        except BaseException as error:
            if self.was_cancelled():
                answers = [bad_answer(CANCELLED, "the run was cancelled")] * len(jobs)
            else:
                self.log.traceback("batch_run failed", error, "")
                whole_error = error_body(code_of(error, self.node), self.log.mask(describe(error)))
                # The host runs the jobs one by one then, and none of them may meet a call of the batch.
                is_last = await self.outlasts(calls, "")
        if self.was_cancelled():
            await self.calls_ended(calls, None)
        self.finish(answers, is_last, whole_error, surplus)

    def batch_answer(self, result: Any, job: Job) -> bytes:
        if isinstance(result, BaseException):
            self.log.traceback("the job failed in a batch", result, job.id)
            return bad_answer(code_of(result, self.node), self.log.mask(describe(result)))
        try:
            return good_answer(result, self.spec["reverse_bits"], self.log)
        except BadResult as error:
            return bad_answer(CONTRACT, str(error))
        except Exception as error:
            # A result that is computed when it is read. The others of the batch are right, and not run again for it.
            self.log.traceback("the result of a job in a batch could not be read", error, job.id)
            return bad_answer(code_of(error, self.node), self.log.mask(describe(error)))

    def finish(
        self, answers: list[bytes | None], is_last: bool, whole_error: bytes | None = None, surplus: int = 0
    ) -> None:
        """Sends the answers; the process ends after a last one."""
        self.answered = {job.id for job in self.jobs}
        self.jobs, self.run = [], None
        output_is_read()
        whole_part = struct.pack("<H", 0) if whole_error is None else struct.pack("<H", 1) + whole_error
        head = whole_part + struct.pack("<QQ", surplus, len(answers))
        body = b"".join(struct.pack("<H", 0) if answer is None else answer for answer in answers)
        self.send(frame(FINAL if is_last else JOBS, head + body))
        if is_last:
            os._exit(LOOP_ENDED)

    # --- cancels

    def take_orders(self) -> None:
        """The control thread: takes orders at once and leaves the work to the loop."""
        # The host's word that there are no further slots.
        receive(self.control, 1)
        while True:
            # Not within the lock: an order may be long in coming.
            select.select([self.control], [], [])
            with self.taking_order:
                self.take_order()

    def take_order(self) -> None:
        kind, body = receive_frame(self.control)
        if kind != ORDER:
            os._exit(LOOP_ENDED)
        order = json.loads(Reader(body).text())
        if isinstance(order, dict) and "Cancel" in order:
            # Not answered: code that keeps the interpreter's lock would delay that.
            taken = threading.Event()
            self.loop.call_soon_threadsafe(self.cancel, order["Cancel"], taken)
            threading.Thread(target=self.watch_cancel, args=(order["Cancel"], taken), daemon=True).start()
            return
        try:
            self.control.sendall(json_frame(ORDER_DONE, {"Done": None}))
        except OSError:
            os._exit(0)

    def watch_cancel(self, job_id: str, taken: threading.Event) -> None:
        if taken.wait(BLOCKED_AFTER_SEC) or job_id in self.blocked_told:
            return
        self.blocked_told.add(job_id)
        stack = sys._current_frames().get(threading.main_thread().ident or 0)
        lines = "".join(traceback.format_stack(stack)).rstrip()
        self.log.say(WARN, f"the executor blocks its event loop, so the cancel waits\n{lines}", job_id)

    def cancel(self, job_id: str, taken: threading.Event) -> None:
        taken.set()
        # An order may overtake the request of its job. One that comes after the answer is late.
        if job_id not in self.answered and all(job.id != job_id for job in self.jobs):
            self.early_cancels.append(job_id)
        for job in self.jobs:
            job.is_cancelled = job.is_cancelled or job.id == job_id
        # A batch has one run for all: it ends when no one waits for it any more.
        if self.jobs and all(job.is_cancelled for job in self.jobs) and not self.is_cancelling:
            self.is_cancelling = True
            self.start(self.cancel_run(self.jobs, self.run))

    async def cancel_run(self, jobs: list[Job], run: asyncio.Task[Any] | None) -> None:
        if run is None:
            return
        hook = getattr(self.executor, "cancel_current_job", None)
        if callable(hook):
            try:
                done = hook()
                if inspect.isawaitable(done):
                    await done
            except Exception as error:
                self.log.traceback("the cancel hook failed", error, jobs[0].id)
        if self.run is run:
            run.cancel()

    def loop_ended(self, error: BaseException) -> NoReturn:
        """The loop was ended by the executor: a task or a handler raised out of it."""
        self.log.traceback("the executor ended its event loop", error)
        if len(self.jobs) == 1:
            self.finish([bad_answer(PANIC, end_of_process(error))], True)
        os._exit(LOOP_ENDED)


class Unsupported(Exception):
    """A circuit that the installed coda_node refuses."""


class Ended:
    """A run that wants its process to end."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def is_end(error: BaseException) -> bool:
    return isinstance(error, (SystemExit, KeyboardInterrupt))


def unread(descriptor: int) -> int:
    """Bytes of a pipe that its reader has not taken."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
    except OSError:
        return 0


def output_is_read() -> None:
    """Waits a moment until what the run has printed is read, so that it is logged as the job's."""
    until = time.monotonic() + OUTPUT_READ_SEC
    while (unread(1) or unread(2)) and time.monotonic() < until:
        time.sleep(0.0005)


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def do_nothing(number: int, stack: types.FrameType | None) -> None:
    """Stop signals are the host's. Helpers do not inherit a handler, as they would that a signal is ignored."""


def take_stop_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in STOP_SIGNALS:
        signal.signal(number, do_nothing)


class Forks:
    """A forked child has no part in the exchange with the host, and can be terminated from its first moment on."""

    def __init__(self, log: Log, sockets: list[socket.socket]) -> None:
        self.log = log
        self.sockets = sockets
        # What each forking thread had blocked before.
        self.masks = threading.local()
        os.register_at_fork(before=self.before, after_in_parent=self.in_parent, after_in_child=self.in_child)

    def before(self) -> None:
        # A stop signal for the child waits until it has the handlers of a child.
        self.masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def in_parent(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.masks.before)

    def in_child(self) -> None:
        self.log.leave()
        for sock in self.sockets:
            sock.close()
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is do_nothing:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.masks.before)


def main(descriptors: list[int]) -> None:
    sockets = [socket.socket(fileno=number) for number in descriptors]
    for sock in sockets:
        sock.set_inheritable(False)
    control, events, slot = sockets
    faulthandler.enable()
    take_stop_signals()
    kind, body = receive_frame(slot)
    if kind != CHECK:
        os._exit(LOOP_ENDED)
    spec: dict[str, Any] = json.loads(Reader(body).text())
    log = Log(events, spec["log_level"])
    Forks(log, sockets)
    logging.root.addHandler(log)
    logging.root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    # Where `coda-node start --daemon` has it, too, though not first.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        node, facts = check(spec, log)
    except Refused as refused:
        answer = {"what": clean(str(refused)), "hint": clean(refused.hint)}
        slot.sendall(json_frame(STEP, {"PythonRefused": answer}))
        return
    slot.sendall(json_frame(STEP, {"PythonChecked": {k: clean(v) if v else v for k, v in facts.items()}}))
    kind, _ = receive_frame(slot)
    if kind != CREATE:
        return
    bridge = Bridge(spec, node, log, sockets)
    bridge.loop.set_default_executor(Calls(thread_name_prefix="asyncio"))
    asyncio.set_event_loop(bridge.loop)
    work = bridge.loop.create_task(bridge.live(), name="coda-live")
    try:
        bridge.loop.run_until_complete(work)
    except BaseException as error:
        bridge.loop_ended(error)
