"""CUDA C++ to PTX by NVRTC, as NVIDIA's package for Python brings it. Runs where compilers run, confined, and on a
user's machine.

NVRTC is loaded by ctypes: it needs no driver, no toolkit and no host compiler. Headers of CUDA's device side and of
CCCL come from their packages; a few that only declare what NVRTC knows by itself are given to it as texts. Of the
packages 12.x is asked for: later ones write PTX that the ptxas of Triton cannot read.
"""

import ctypes
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kerneltune.tools.languages.base import FILE, NotCompiled
from kerneltune.tools.languages.ptx.ir import Function, parse
from kerneltune.tools.schema.gpus import arch_number
from kerneltune.tools.schema.messages import Failure, Program
from kerneltune.tools.schema.verdict import Cause, Status

MOST_TEXT_BYTES = 1 << 20
MOST_LOG_BYTES = 1 << 20
UNPLACED = "kernel.cu"  # what a text is called whose place in the candidate's file is not known
OPTIONS = (
    "--use_fast_math", "--fmad=true", "--fmad=false", "--ftz=true", "--ftz=false", "--prec-div=true",
    "--prec-div=false", "--prec-sqrt=true", "--prec-sqrt=false", "--extra-device-vectorization", "--restrict",
    "--std=c++14", "--std=c++17", "--std=c++20",
)  # fmt: skip
_MACRO = re.compile(r"-D[A-Za-z_]\w*(=.*)?", re.DOTALL)
_INCLUDES = ("nvidia.cuda_runtime", "nvidia.cuda_cccl", "nvidia.cuda_nvcc")  # the last has crt/mma.h, as has Triton
_MISSING = "CUDA C++ is lowered by NVRTC, which is not installed here: pip install 'kerneltune[cuda]'"

# What nvcc has always included, as far as device code uses it; and headers of the C library, whose functions NVRTC
# knows without them.
_PRELUDE = """
#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef long long intptr_t; typedef unsigned long long uintptr_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define HUGE_VALF __int_as_float(0x7f800000)
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#define CHAR_BIT 8
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807ll
#define M_PI 3.14159265358979323846
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LN2 0.69314718055994530942
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define M_2_SQRTPI 1.12837916709551257390
"""
_EMPTY = (
    "stdint.h cstdint math.h float.h cfloat limits.h climits stddef.h cstddef stdio.h cstdio stdlib.h cstdlib "
    "assert.h cassert string.h cstring"
).split()
_PRELUDE_NAME = "kerneltune.h"
_OF_CCCL = "cmath limits type_traits utility".split()  # whose std:: is cuda::std::
_ALGORITHM = """
#pragma once
namespace std {
template <class T> __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
}
"""
_HEADERS = {
    _PRELUDE_NAME: _PRELUDE,
    "algorithm": _ALGORITHM,
    **dict.fromkeys(_EMPTY, ""),
    **{name: f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n" for name in _OF_CCCL},
}


def lowered(program: Program, arch: str) -> str:
    """PTX for "sm_90" and the like that has one entry, named as in C++ where that is free. Raises NotCompiled."""
    if problem := _forbidden(program):
        raise NotCompiled(Failure(Status.REJECTED, problem, cause=Cause.COMPILE_OPTION))
    library = _library()
    if library is None:
        raise NotCompiled(Failure(Status.REJECTED, _MISSING, cause=Cause.COMPILE_OPTION))
    ptx, name = _compiled(library, program, _options(library, program, arch))
    return _readable(ptx, name, program)


def _forbidden(program: Program) -> str | None:
    if len(program.text.encode(errors="surrogatepass")) > MOST_TEXT_BYTES:
        return f"a CUDA C++ text of more than {MOST_TEXT_BYTES >> 20} MiB"
    if "\0" in program.text + program.entry + "".join(program.options):
        return "a CUDA C++ text with NUL characters"
    strange = next((o for o in program.options if o not in OPTIONS and not _MACRO.fullmatch(o)), None)
    return f"{strange!r:.80} is no option of a CudaKernel; those are {', '.join(OPTIONS)}" if strange else None


# ---
# The library.


@cache
def _library() -> ctypes.CDLL | None:
    """NVRTC, which is not needed by anybody without CUDA C++."""
    for folder in _package("nvidia.cuda_nvrtc"):
        for path in sorted((folder / "lib").glob("libnvrtc.so.*")):
            library = ctypes.CDLL(str(path))
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            return library
    return None


def _package(name: str) -> Iterator[Path]:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # nothing of NVIDIA's is installed
        return
    yield from map(Path, (spec.submodule_search_locations or ()) if spec else ())


def _options(library: ctypes.CDLL, program: Program, arch: str) -> list[str]:
    folders = [folder / "include" for name in _INCLUDES for folder in _package(name)]
    folders += [folder / "backends" / "nvidia" / "include" for folder in _package("triton")]
    return [
        f"--gpu-architecture=compute_{_known(library, arch_number(arch))}",
        f"--pre-include={_PRELUDE_NAME}",
        *(f"--include-path={folder}" for folder in folders),
        "--device-as-default-execution-space",
        "--generate-line-info",
        "--disable-warnings",
        *([] if any(o.startswith("--std") for o in program.options) else ["--std=c++17"]),
        *program.options,
    ]


def _known(library: ctypes.CDLL, number: int) -> str:
    """The architecture as NVRTC calls it, with all that it has; of one that is newer than NVRTC, the one before."""
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    archs = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(archs)
    if number in archs:
        return f"{number}a" if number >= 90 else str(number)
    return str(max((its for its in archs if its <= number), default=min(archs)))


def _compiled(library: ctypes.CDLL, program: Program, options: Sequence[str]) -> tuple[str, str]:
    """PTX, and what it calls the kernel: "" where the program does not name one. Raises NotCompiled."""
    text = f'#line {program.line} "{FILE}"\n{program.text}' if program.line else program.text
    handle = ctypes.c_void_p()
    contents, names = (_strings(words) for words in (list(_HEADERS.values()), list(_HEADERS)))
    wanted = _bytes(program.entry)
    created = library.nvrtcCreateProgram(
        ctypes.byref(handle), _bytes(text), UNPLACED.encode(), len(_HEADERS), contents, names
    )
    if created:
        raise _unwilling(library, created)
    try:
        if wanted and (code := library.nvrtcAddNameExpression(handle, wanted)):
            raise _unwilling(library, code)
        code = library.nvrtcCompileProgram(handle, len(options), _strings(options))
        if code:
            log = _taken(library, handle, "ProgramLog").decode(errors="replace")
            raise NotCompiled(_failure(log, library.nvrtcGetErrorString(code).decode()))
        called = ctypes.c_char_p()
        if wanted and (code := library.nvrtcGetLoweredName(handle, wanted, ctypes.byref(called))):
            raise _unwilling(library, code)
        return _taken(library, handle, "PTX").decode(), (called.value or b"").decode()
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(handle))


def _taken(library: ctypes.CDLL, handle: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(handle, ctypes.byref(size))
    held = ctypes.create_string_buffer(max(1, size.value))
    getattr(library, f"nvrtcGet{what}")(handle, held)
    return held.value


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")


def _strings(texts: Sequence[str]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * len(texts))(*map(_bytes, texts))


def _unwilling(library: ctypes.CDLL, code: int) -> NotCompiled:
    said = library.nvrtcGetErrorString(code).decode()
    return NotCompiled(Failure(Status.COMPILE_FAILED, f"NVRTC: {said}", cause=Cause.COMPILER_ERROR))


# ---
# What it says of a text that does not compile, with the lines of the candidate's file where those are known.

_MOST_ERRORS, _MOST_OF_AN_ERROR = 8, 500
_ERROR = re.compile(
    r"^(?P<file>[^\n(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<message>[^\n]*)\n(?P<code>[^\n]*)", re.MULTILINE
)
_HINTS = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (
            r'cannot open source file "(?:torch|ATen|c10|pybind11)\b',
            "a CudaKernel holds device code alone: torch's part is Python here. `optimize convert` turns a C++ launcher"
            " into it",
        ),
        (
            r'cannot open source file "',
            "only CUDA's own headers and CCCL's (<cuda/…>, <cub/…>) can be included, no host headers",
        ),
        (r"device-side kernel launch", "kernels cannot launch kernels: launch both from forward"),
        (r'attribute "__global__" does not apply', "does its return type say void, and are the types known?"),
        (
            r'namespace "std"',
            "std:: has only what <cmath>, <limits>, <type_traits> and <utility> declare, and min and max",
        ),
    )
)


@dataclass(frozen=True)
class _Complaint:
    line: int
    words: str
    placed: bool  # whether the line is one of the candidate's file

    def __str__(self) -> str:
        return self.words


def _failure(log: str, general: str) -> Failure:
    found = [_complaint(match) for match in _ERROR.finditer(log[:MOST_LOG_BYTES])][:_MOST_ERRORS]
    if not found:
        words = log.strip()[:_MOST_OF_AN_ERROR] or general
        return Failure(Status.COMPILE_FAILED, f"NVRTC: {words}", cause=Cause.COMPILER_ERROR)
    rest = [f"line {c.line}: {c}" if c.placed else str(c) for c in found[1:]]
    hints = [hint for pattern, hint in _HINTS if pattern.search(log)][:2]
    message = "\n".join([f"NVRTC: {found[0]}", *rest, *(f"({hint})" for hint in hints)])
    line = next((c.line for c in found if c.placed), None)
    return Failure(Status.COMPILE_FAILED, message, line, cause=Cause.COMPILER_ERROR)


def _complaint(match: re.Match[str]) -> _Complaint:
    file, line, code = Path(match["file"]).name, int(match["line"]), match["code"].strip()[:160]
    words = match["message"].strip()[:_MOST_OF_AN_ERROR] + (f": {code}" if code else "")
    if file == FILE:
        return _Complaint(line, words, placed=True)
    place = f"CUDA line {line}" if file == UNPLACED else f"{file}({line})"
    return _Complaint(line, f"{place}: {words}", placed=False)


# ---
# PTX as its author can read it: one entry, named as the function and its parameters are in C++.

_FILE_LINE = re.compile(r'^(\s*\.file\s+\d+ )"([^"\n]*)"', re.MULTILINE)
_COMMENTS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_VARIABLE = re.compile(
    r"\s*(?:\.(?:visible|weak|common) )?\.(?:global|const) [^={;]*?([\w$]+)(?:\[\d*\])?(?: = [^;]*)?;"
)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")


def _readable(ptx: str, called: str, program: Program) -> str:
    ptx = _FILE_LINE.sub(lambda m: f'{m[1]}"{Path(m[2]).name}"', ptx)
    entries = parse(ptx).entries
    if not called and len(entries) != 1:
        names = ", ".join(entry.name for entry in entries) or "no kernel that is not a template"
        words = f"say which function is meant, CudaKernel(text, name): the text has {names}"
        raise NotCompiled(Failure(Status.REJECTED, words))
    called = called or entries[0].name
    ptx = _alone(ptx, called, entries)
    name = _plain_name(program.entry) or _demangled(called)
    if name != called and not _stands_in(name, ptx):
        ptx = re.sub(rf"(?<![\w$]){re.escape(called)}(?![\w$])", name, ptx)
        ptx = re.sub(rf"(?<![\w$]){re.escape(called)}(?=_param_\d+\b)", name, ptx)
    else:
        name = called
    entry = next(e for e in parse(ptx).entries if e.name == name)
    declared = _parameters(program.text, _plain_name(program.entry) or _demangled(called))
    for param, its in zip(entry.params, declared, strict=True) if len(declared) == len(entry.params) else ():
        if not _stands_in(its, ptx):
            ptx = re.sub(rf"(?<![\w$]){re.escape(param.name)}(?![\w$])", its, ptx)
    return ptx


def _alone(ptx: str, called: str, entries: Sequence[Function]) -> str:
    """The text without its other entries, and without variables that nothing names, as headers of CCCL's bring; lines
    keep their numbers."""
    lines = ptx.split("\n")
    for entry in entries:
        if entry.name != called:
            lines[entry.line - 1 : entry.end_line] = [""] * (entry.end_line - entry.line + 1)
    declared = {n: match[1] for n, line in enumerate(lines) if (match := _VARIABLE.fullmatch(line))}
    while True:
        named = Counter(word for line in lines for word in _WORD.findall(line))
        unused = [n for n, name in declared.items() if lines[n] and named[name] == 1]
        if not unused:
            return "\n".join(lines)
        for n in unused:
            lines[n] = ""


def _stands_in(name: str, ptx: str) -> bool:
    return re.search(rf"(?<![\w$.%]){re.escape(name)}(?![\w$])", ptx) is not None


def _plain_name(expression: str) -> str:
    """ "scale" of "ops::scale<float, 4>"."""
    words = _IDENTIFIER.findall(expression.partition("<")[0])
    return words[-1] if words else ""


def _demangled(name: str) -> str:
    """The function's own name in a mangled one: "scale" of "_Z5scalePfi", "scale" of "_ZN3ops5scaleEPf"."""
    at = re.match(r"_ZN?(?=\d)", name)
    found, rest = name, name[at.end() :] if at else ""
    while digits := re.match(r"\d+", rest):
        size = int(digits[0][:4])
        found, rest = rest[digits.end() : digits.end() + size], rest[digits.end() + size :]
        if not name.startswith("_ZN"):
            break
    return found if _IDENTIFIER.fullmatch(found) else name


def _parameters(text: str, name: str) -> list[str]:
    """Names of a kernel's parameters as its first declaration has them; [] where they are not plain."""
    bare = _COMMENTS.sub(" ", text)
    for found in re.finditer(rf"\b{re.escape(name)}\s*\(", bare):
        ahead = re.split(r"[;{}]", bare[: found.start()])[-1]
        if "__global__" in ahead:
            names = [_last_name(piece) for piece in _pieces(bare, found.end())]
            return names if all(names) and len(set(names)) == len(names) else []
    return []


def _pieces(text: str, at: int) -> Iterator[str]:
    """What stands between commas, up to the bracket that closes."""
    depth, start = 0, at
    for i in range(at, len(text)):
        mark = text[i]
        if mark == ")" and depth == 0:
            if text[start:i].strip():
                yield text[start:i]
            return
        depth += (mark in "(<[") - (mark in ")>]")
        if mark == "," and depth == 0:
            yield text[start:i]
            start = i + 1


def _last_name(declaration: str) -> str:
    words = _IDENTIFIER.findall(declaration.partition("=")[0].partition("[")[0])
    return words[-1] if len(words) > 1 else ""
