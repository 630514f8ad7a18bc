"""Opens what device.yaml names: a backend, a provider's backend, a primitive."""

from __future__ import annotations

import importlib
import inspect
import logging
import operator
import sys
from collections.abc import Mapping
from typing import Any

from qiskit.transpiler import Target

from coda_executor import ConfigError
from coda_qiskit.config import Config

log = logging.getLogger("coda_qiskit")



def load(key: str, path: Any) -> Any:
    """What `module:attribute` names."""
    module, _, attribute = str(path).partition(":")
    if not module or not attribute:
        raise ConfigError(f"{key} is {path!r}; write <module>:<attribute>")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{key} is {path!r}, and there is no module {error.name!r}; install the provider's package: "
            f"{sys.executable} -m pip install ..."
        ) from error
    except AttributeError as error:
        raise ConfigError(f"{key} is {path!r}: {error}") from error


def create(key: str, path: Any, args: Mapping[str, Any]) -> Any:
    """What `module:attribute` makes with these arguments; an object that is there already is used as it is."""
    target = load(key, path)
    if not callable(target) or (hasattr(target, "run") and not inspect.isclass(target)):
        if args:
            raise ConfigError(f"{key} is {path!r}, which exists already, so {key}_args have no effect; remove them")
        return target
    try:
        inspect.signature(target).bind(**args)
    except TypeError as error:
        raise ConfigError(f"{key}_args do not fit {path!r}: {error}") from error
    except ValueError:
        pass  # Without a signature; the call tells.
    return target(**args)


def backend_of_provider(provider: Any, config: Config) -> Any:
    name = config.backend_name
    try:
        for method in ("get_backend", "backend"):
            if hasattr(provider, method):
                get = getattr(provider, method)
                return get(name, **config.backend_args) if name else get(**config.backend_args)
        # A provider with a tree of backends: `offline.ideal` is provider.offline.ideal().
        found = operator.attrgetter(name or "")(provider)
        return found if hasattr(found, "run") else found(**config.backend_args)
    except Exception as error:
        if type(error).__name__ in ("QiskitBackendNotFoundError", "AttributeError", "LookupError", "KeyError"):
            raise ConfigError(
                f"backend_name is {name!r}, which the provider {config.provider} does not have{offered(provider)}"
            ) from error
        raise


def offered(provider: Any) -> str:
    """The backends that a provider lists, for an error."""
    try:
        names = [name_of(backend) for backend in provider.backends()]
    except Exception as error:
        log.info("the provider does not list its backends: %s", error)
        return ""
    return f"; it has {', '.join(names) or 'none'}"


def name_of(backend: Any) -> str:
    name = getattr(backend, "name", None)
    return str((name() if callable(name) else name) or type(backend).__name__)


def open_backend(config: Config) -> Any:
    """The backend that the device config names; None for a primitive without one."""
    if config.provider:
        provider = create("provider", config.provider, config.provider_args)
        backend = backend_of_provider(provider, config)
    elif config.backend:
        backend = create("backend", config.backend, config.backend_args)
    else:
        return None
    if getattr(backend, "version", 2) == 1:
        # Backends of the old kind exist up to Qiskit 1.
        backend = load("backend", "qiskit.providers:BackendV2Converter")(backend)
    named = f"{config.provider or config.backend} is {type(backend).__name__}"
    if not isinstance(getattr(backend, "target", None), Target):
        raise ConfigError(f"{named}, which is not a Qiskit backend")
    if not config.primitive and not callable(getattr(backend, "run", None)):
        raise ConfigError(f"{named}, which has no run; set primitive to a SamplerV2 of the provider")
    return backend


def open_primitive(config: Config, backend: Any) -> Any:
    """A SamplerV2, which takes its backend as `mode` (IBM's) or as `backend`."""
    args = dict(config.primitive_args)
    if backend is not None:
        parameters = inspect.signature(load("primitive", config.primitive)).parameters
        takes = next((name for name in ("mode", "backend") if name in parameters), None)
        if takes is None:
            raise ConfigError(f"primitive is {config.primitive!r}, which takes no backend; remove backend or provider")
        args[takes] = backend
    return create("primitive", config.primitive, args)
