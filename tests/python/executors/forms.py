"""Factories of every form that coda-node's loader tells apart."""

import functools
import signal
import threading

from lab import Lab

instance = Lab()
runs_as_it_is = Lab
not_callable = 5
partial = functools.partial(lambda settings, extra: Lab(), extra=1)


class ByAttribute:
    def __getattr__(self, name):
        if name == "run":
            return Lab().run
        raise AttributeError(name)


by_attribute = ByAttribute()


class StaticRun:
    @staticmethod
    async def run(ir, shots):
        return await Lab().run(ir, shots)


class Called:
    def __call__(self, settings):
        return Lab()


called = Called()


class Settled(Lab):
    """A class that is instantiated with the settings."""

    def __init__(self, settings):
        assert settings.num_qubits > 0


def none():
    return Lab()


def one(settings):
    assert settings.device_config.endswith("device.yaml")
    return Lab()


def default(settings=None):
    assert settings is not None
    return Lab()


def several(*args):
    assert len(args) == 1
    return Lab()


def keyword_only(*, settings):
    return Lab()


def two(settings, other):
    return Lab()


async def asynchronous(settings):
    return Lab()


def no_runner(settings):
    return object()


def in_main_thread(settings):
    """What runs under uvicorn: signal handlers, and the running loop."""
    import asyncio

    signal.signal(signal.SIGUSR1, lambda *_: None)
    assert asyncio.get_running_loop().is_running()
    assert threading.current_thread() is threading.main_thread()
    return Lab()


class SyncRun:
    def run(self, ir, shots):
        return _answer(ir, shots)


def _answer(ir, shots):
    from lab import result, zeros

    return result({zeros(ir): shots}, 1.0, shots)


def sync_run(settings):
    return SyncRun()


class FutureRun:
    def run(self, ir, shots):
        import asyncio

        future = asyncio.get_running_loop().create_future()
        future.set_result(_answer(ir, shots))
        return future


def future_run():
    return FutureRun()


class Outer:
    @staticmethod
    def make(settings):
        return Lab()


def raises(settings):
    raise RuntimeError("the cryostat is warm")


def exits(settings):
    raise SystemExit("no licence")


class Device:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Wired(Lab):
    device = Device(logical_edges=[(0, 1), [1, 2]], directed_edges=[[1, 0], (2, 1)], num_qubits=3)


class Undirected(Lab):
    device = Device(logical_edges=[(0, 1)], directed_edges=[])


class Edgeless(Lab):
    device = Device(logical_edges=[])


class NoEdges(Lab):
    device = Device(name="bare")


def with_edges(edges):
    """A factory of an executor with these edges, whatever they are."""
    return lambda: setattr(lab := Lab(), "device", Device(directed_edges=edges)) or lab


endless_edges = with_edges(([0, 1] for _ in iter(int, 1)))
fractions = with_edges([(0, 1), (0.5, 1)])
huge = with_edges([(0, 10**30)])
triples = with_edges([(0, 1, 2)])
a_text = with_edges("ab")
a_number = with_edges(7)
