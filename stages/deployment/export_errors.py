"""One message for an export that failed: which line of the user's model could not be traced, and what to do."""

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = tuple(
    str(Path(sysconfig.get_path("purelib")) / name) + "/"
    for name in ("torch", "onnxscript", "onnx_ir", "sympy", "onnx")
)
_OURS = str(Path(__file__).parent) + "/"
_STANDARD = sysconfig.get_path("stdlib") + "/"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
_LIMIT = 240


def explain(error: BaseException, program: Any = None) -> str:
    """What went wrong, at which line, and what to do. `program` is the traced program where tracing worked."""
    operator = next((m.group(1) for e in _chain(error) if (m := _OPERATOR.search(str(e)))), None)
    if operator is not None:
        place = _line_of_operator(program, operator)
        return f"ONNX has no operator for {operator}{place}; replace it by operations that ONNX knows"
    place = _line_of(error)
    reason = _reason(error)
    return f"{reason}{place}"


def _reason(error: BaseException) -> str:
    names = {base.__name__ for base in type(error).__mro__}
    if "GuardOnDataDependentSymNode" in names:
        return (
            "the result depends on the values in a tensor, as in a Python `if` or float() on a tensor; use "
            "torch.where, torch.cond or a fixed choice instead"
        )
    text = str(error)
    if "Constraints violated" in text or "specialized" in text:
        return (
            "the forward fixes the size of the batch, as in .view(2, -1) or a loop over samples; take it from "
            "x.shape[0], or use -1"
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return first if len(first) <= _LIMIT else f"{first[:_LIMIT]}..."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _line_of(error: BaseException) -> str:
    """The innermost line of code that is neither PyTorch's nor ours."""
    for link in _chain(error):
        frames = [frame for frame in traceback.extract_tb(link.__traceback__) if _is_users(frame.filename)]
        if frames:
            last = frames[-1]
            return _place(last.filename, last.lineno or 0)
    return ""


def _line_of_operator(program: Any, operator: str) -> str:
    """The line whose traced node is this operator, from the stack trace that tracing left in the node."""
    if not isinstance(program, torch.export.ExportedProgram):
        return ""
    wanted = _bare(operator)
    for node in program.graph.nodes:
        if node.op == "call_function" and wanted in _bare(str(node.target)):
            frames = _FRAME.findall(node.meta.get("stack_trace") or "")
            own = [(file, int(number)) for file, number in frames if _is_users(file)]
            if own:
                return _place(*own[-1])
    return ""


def _bare(operator: str) -> str:
    """`aten.linalg_eig.default` -> `linalg_eig`; `aten.special_bessel_j0` and `prims.bessel_j0` share a part."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _place(file: str, number: int) -> str:
    code = linecache.getline(file, number).strip()
    return f" (line {number} of {file}: {code})" if code else f" (line {number} of {file})"


def _is_users(file: str) -> bool:
    if file.startswith(("<", _OURS, *_LIBRARIES)):
        return False
    return not file.startswith(_STANDARD) or "site-packages" in file  # A package of the user's may be installed.
