"""Work that makes the host wait for the device, found on a CPU, where nobody would notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = ("cpu", "numpy", "tolist", "__array__")  # of a tensor: nothing happens to it on a CPU, a copy elsewhere
FACTORIES = (torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.full, torch.arange, torch.eye, torch.empty)
VALUE, SHAPE = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
Note = Callable[[str], None]


class Waiting(TorchFunctionMode):
    """Tells ``note`` what waits, in words: reading values, shapes that depend on values, tensors made elsewhere."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self.note = note
        self.at_work = ""  # what the program called
        self.dispatched = _Dispatched(self)

    def __enter__(self) -> Waiting:
        super().__enter__()
        self.dispatched.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.dispatched.__exit__(*error)
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at what the program calls."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in READS or (name == "to" and "cpu" in map(str, (*args[1:], *kwargs.values()))):
            self.note(f".{name}() copies a tensor to the host")
        elif func in FACTORIES and "device" not in kwargs:
            made = func(*args, **kwargs)
            if made.ndim:  # a single number goes well with tensors of any device
                self.note(f"torch.{name}() without device= makes a tensor on the host")
            return made
        # With a number of classes one_hot looks at values on a CPU alone.
        self.at_work = "" if func is F.one_hot and (len(args) > 1 or kwargs) else name
        return func(*args, **kwargs)


class _Dispatched(TorchDispatchMode):
    """Looks at the operations behind the calls."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__()
        self.waiting = waiting

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note operations whose result, or its shape, the host must know."""
        kwargs = kwargs or {}
        name = self.waiting.at_work
        if VALUE in func.tags and name:
            self.waiting.note(f"{_called(name)} asks for a tensor's value")
        elif SHAPE in func.tags and (func is not torch.ops.aten.index.Tensor or _masks(args)):
            self.waiting.note(f"{_called(name)} makes a shape that depends on a tensor's values")
        return func(*args, **kwargs)


def _masks(args: Any) -> bool:
    """Whether an index is a mask: how many entries it takes is known on the device alone."""
    return any(t.dtype in (torch.bool, torch.uint8) for t in tree_leaves(args[1]) if isinstance(t, Tensor))


def _called(name: str) -> str:
    return {"__bool__": "a branch", "__getitem__": "indexing with a mask"}.get(name, f"{name.strip('_')}()")
