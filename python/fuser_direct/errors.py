"""The exceptions that fuser_direct raises.

Every one is a `FuserError` and also the built-in that a caller of the peer API would catch, so
`except RuntimeError` written for `nvfuser_direct` keeps working.
"""

from __future__ import annotations


class FuserError(Exception):
    """Base of all errors raised by fuser_direct."""


class DefinitionError(FuserError, RuntimeError):
    """A fusion was defined wrongly: an op got an operand, an axis or an attribute that it can't
    take."""


class DefinitionTypeError(FuserError, TypeError):
    """A definition call got an argument of the wrong Python type."""


class DefinitionStateError(FuserError, NotImplementedError):
    """A definition was executed before it was complete (never entered, or without an output)."""


class UsageError(FuserError, AssertionError):
    """Two ways of executing one definition were mixed."""


class ValidationError(FuserError, AssertionError, RuntimeError):
    """An output differs from its reference; the message says which, where, by how much, and what
    is allowed."""


class UnsupportedDeviceError(FuserError, ValueError):
    """A tensor lives on a device that this call can't use."""


class UnsupportedDTypeError(FuserError, RuntimeError, KeyError):
    """A tensor has an element type that no fusion takes."""

    # KeyError would print the repr of the message.
    __str__ = Exception.__str__


class InputError(FuserError, RuntimeError):
    """An argument of `execute` or `run` doesn't fit the fusion: dtype, rank, extent, stride or
    device."""


class InputTypeError(FuserError, TypeError, RuntimeError):
    """An argument of `execute` or `run` has a Python type that no fusion input takes."""


class CompileError(FuserError, RuntimeError):
    """A generated kernel failed to build; the message holds the log and the numbered source."""


class LaunchError(FuserError, RuntimeError):
    """Launch parameters exceed a limit of the device or of the kernel; nothing was launched."""


class CudaError(FuserError, RuntimeError):
    """A call of the CUDA driver failed; the message names the call and the driver's own error."""


class CudaUnavailableError(CudaError):
    """GPU work was asked for where none can be done; the message says which case and what to do."""


class UnsupportedError(FuserError, RuntimeError):
    """A request that this version can't serve; the message says why and what to do instead."""
