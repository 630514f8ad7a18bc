"""Errors of providers in texts that the operator or the sender can act on."""

from __future__ import annotations

from coda_executor import ConfigError, ExecutorError



def explain(error: Exception, name: str) -> Exception:
    """The error in a text that the operator or the sender can act on."""
    if isinstance(error, (ConfigError, ExecutorError, NotImplementedError)):
        return error
    kinds = [kind.__name__ for kind in type(error).__mro__]
    text = str(error).strip() or kinds[0]
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", getattr(error, "status_code", None))
    if status in (401, 403) or any(word in kind for kind in kinds for word in ("Auth", "Credential", "Unauthor")):
        return ExecutorError(f"the provider of {name} refused the credentials, so check the secret: {text}")
    if status in (408, 504) or any("Timeout" in kind for kind in kinds):
        return TimeoutError(f"{name} did not answer in time, or its queue is too long: {text}")
    if isinstance(error, OSError) or any("Connect" in kind for kind in kinds):
        return ExecutorError(f"the provider of {name} can't be reached: {text}")
    return ExecutorError(f"{name} failed: {text}" if text != kinds[0] else f"{name} failed: {kinds[0]}")
