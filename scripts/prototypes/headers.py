"""Prototypes from installed headers, by way of libclang."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import CursorKind, Index, TypeKind

# A type is passed the way its ABI class says, so that is what a kind must tell; the rest of a kind says what
# the argument means, which is what the tests need.
SCALARS = {
    TypeKind.BOOL: "u8",
    TypeKind.CHAR_S: "u8",
    TypeKind.SCHAR: "u8",
    TypeKind.UCHAR: "u8",
    TypeKind.SHORT: "u16",
    TypeKind.USHORT: "u16",
    TypeKind.INT: "int",
    TypeKind.UINT: "u32",
    TypeKind.LONG: "i64",
    TypeKind.ULONG: "u64",
    TypeKind.LONGLONG: "i64",
    TypeKind.ULONGLONG: "u64",
    TypeKind.FLOAT: "f32",
    TypeKind.DOUBLE: "f64",
    TypeKind.ENUM: "int",
}
NAMED = {
    "size_t": "size",
    "CUdeviceptr": "devptr",
    "CUdeviceptr_v2": "devptr",
    "cudaStream_t": "stream",
    "CUstream": "stream",
    "cudaEvent_t": "event",
    "CUevent": "event",
    "cudaHostFn_t": "fn",
}
COMPLEX = {"float": "cf32", "double": "cf64"}

# The passes give the plain, the historical and the per-thread-default-stream names of the same headers.
PASSES = (
    [],
    ["-D__CUDA_API_VERSION_INTERNAL", "-DNVML_NO_UNVERSIONED_FUNC_DEFS"],
    ["-D__CUDA_API_PER_THREAD_DEFAULT_STREAM", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"],
)


# The wheels leave out the `crt` headers of the compiler; of those only these macros are needed here.
HOST_DEFINES = "".join(
    f"#define {name}\n"
    for name in [
        "__host__",
        "__device__",
        "__global__",
        "__shared__",
        "__constant__",
        "__managed__",
        "__no_return__",
        "__noinline__",
        "__forceinline__",
        "__inline_hint__",
        "CUDARTAPI",
        "CUDARTAPI_CDECL",
        "__builtin_align__(n)",
        "__device_builtin__",
        "__device_builtin_texture_type__",
        "__device_builtin_surface_type__",
        "__cudart_builtin__",
        "__align__(n)",
        "__location__(a)",
        "__annotate__(a)",
        "__specialization_static",
        "__cluster_dims__(...)",
    ]
)
STAND_INS = {
    "crt/host_defines.h": HOST_DEFINES,
    "crt/host_config.h": HOST_DEFINES,
    "cuda_fp16.h": "typedef struct { unsigned short x; } __half;\n",
    "cuda_bf16.h": "typedef struct { unsigned short x; } __nv_bfloat16;\n",
    "cuda_runtime.h": "#include <cuda_runtime_api.h>\n",
    "cuda_fp8.h": "",
    "GL/gl.h": "typedef unsigned int GLuint; typedef unsigned int GLenum;\n",
    "EGL/egl.h": "typedef int EGLint; typedef unsigned int EGLBoolean;\n",
    "EGL/eglext.h": "".join(
        f"typedef struct {name}_st *{name}KHR;\n" for name in ("EGLStream", "EGLSync", "EGLImage")
    ),
    "vdpau/vdpau.h": "typedef unsigned VdpDevice, VdpVideoSurface, VdpOutputSurface;\n"
    "typedef int VdpGetProcAddress(void);\n",
    "CL/cl.h": "".join(
        f"typedef struct _cl_{name} *cl_{name};\n"
        for name in ("device_id", "context", "command_queue", "mem", "sampler", "program", "event")
    ),
}


@dataclass
class Prototype:
    """One function: what it is called with and what it answers."""

    name: str
    kinds: list[str]
    result: str
    names: list[str] = field(default_factory=list)

    def text(self) -> str:
        tail = "" if self.result == "status" else f" -> {self.result}"
        return f"({', '.join(self.kinds)}){tail}"


class Reader:
    """Reads the headers of one environment for one library."""

    def __init__(self, library: dict, includes: list[Path], compiler_include: str) -> None:
        self.library = library
        self.includes = includes
        self.compiler_include = compiler_include
        self.language = ["-xc++", "-std=gnu++17"] if library.get("cxx") else ["-xc", "-std=gnu11"]
        self.host_out = re.compile(library["host_out"]) if "host_out" in library else None

    def read(self) -> dict[str, Prototype]:
        """Every function that the library's headers declare, by its exported name."""
        found: dict[str, Prototype] = {}
        for headers in self.library["headers"]:
            self._read_unit("".join(f'#include "{h}"\n' for h in self._present(headers)), found)
        return found

    def _read_unit(self, source: str, found: dict[str, Prototype]) -> None:
        for defines in PASSES:
            unit = Index.create().parse(
                "unit.c",
                args=[*self.language, "-isystem", self.compiler_include, "-I/stand-in", *defines]
                + [f"-I{d}" for d in self.includes],
                unsaved_files=[
                    ("unit.c", "#include <stddef.h>\n#include <stdint.h>\n#include <stdbool.h>\n" + source),
                    *((f"/stand-in/{name}", text) for name, text in STAND_INS.items()),
                ],
            )
            fatal = [d for d in unit.diagnostics if d.severity >= 3]
            if fatal and not defines:
                for d in fatal[:5]:
                    print(f"  {d}")
            for cursor in _declarations(unit.cursor):
                if cursor.kind != CursorKind.FUNCTION_DECL or cursor.is_definition():
                    continue
                if not cursor.spelling.startswith(tuple(self.library["prefixes"])):
                    continue
                found.setdefault(cursor.spelling, self._prototype(cursor))

    def _present(self, headers: list[str]) -> list[str]:
        wanted = []
        for header in headers:
            name = header.rstrip("?")
            if name in STAND_INS or any((d / name).exists() for d in self.includes):
                wanted.append(name)
        return wanted

    def _prototype(self, cursor) -> Prototype:
        parameters = list(cursor.get_arguments())
        kinds = [self._parameter(p.type, p.spelling or "") for p in parameters]
        if cursor.type.kind == TypeKind.FUNCTIONPROTO and cursor.type.is_function_variadic():
            kinds.append("...")
        return Prototype(
            cursor.spelling, kinds, self._result(cursor.result_type), [p.spelling for p in parameters]
        )

    def _result(self, result) -> str:
        if result.spelling.replace("enum ", "") in (self.library["status"], self.library["status"] + "_enum"):
            return "status"
        if result.kind == TypeKind.VOID:
            return "void"
        return self._parameter(result, "")

    def _parameter(self, kind, name: str) -> str:
        spelled = kind.spelling.replace("const ", "")
        if spelled in NAMED:
            return NAMED[spelled]
        canonical = kind.get_canonical()
        if canonical.kind in SCALARS:
            return SCALARS[canonical.kind]
        if canonical.kind == TypeKind.RECORD:
            return self._by_value(canonical)
        if canonical.kind in (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY):
            element = canonical.get_array_element_type()
            return "ptr" if element.is_const_qualified() else self._pointee(element, name, array=True)
        if canonical.kind == TypeKind.POINTER:
            if _opaque(kind):
                return _handle(kind)
            written = kind.get_pointee() if kind.kind == TypeKind.POINTER else canonical.get_pointee()
            return self._pointee(written, name)
        raise ValueError(f"no kind for {kind.spelling} ({canonical.kind}) {name}")

    def _pointee(self, written, name: str, array: bool = False) -> str:
        target = written.get_canonical()
        if target.kind in (TypeKind.FUNCTIONPROTO, TypeKind.FUNCTIONNOPROTO):
            return "fn"
        character = target.kind in (TypeKind.CHAR_S, TypeKind.SCHAR)
        if written.is_const_qualified() or target.is_const_qualified():
            return "cstr" if character else "ptr"
        if target.kind == TypeKind.VOID or (array and "device" in self.library):
            return "ptr"
        device = self.library.get("device", False) and not self.host_out.search(name)
        if target.kind == TypeKind.POINTER:
            if _opaque(written):
                return "out " + (NAMED.get(written.spelling) or _handle(written))
            inner = target.get_pointee().get_canonical()
            if device:
                return "ptr"
            if inner.kind in (TypeKind.CHAR_S, TypeKind.SCHAR):
                return "out cstr" if target.get_pointee().is_const_qualified() else "out ptr"
            return "out ptr"
        if device:
            return "ptr"
        if target.kind == TypeKind.RECORD:
            size = target.get_size()
            return f"out bytes({size})" if size > 0 else "ptr"
        if character:
            return "out text"
        if written.spelling in NAMED:
            return "out " + NAMED[written.spelling]
        return "out " + SCALARS[target.kind]

    @staticmethod
    def _by_value(record) -> str:
        size = record.get_size()
        members = {f.type.get_canonical().spelling for f in record.get_fields()}
        if (
            len(members) == 1
            and (only := next(iter(members))) in COMPLEX
            and size == 2 * {"float": 4, "double": 8}[only]
        ):
            return COMPLEX[only]
        return f"struct({size})"


def _declarations(cursor):
    """The declarations of a unit, those inside `extern "C"` and namespaces included."""
    for child in cursor.get_children():
        if child.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL, CursorKind.NAMESPACE):
            yield from _declarations(child)
        else:
            yield child


def _opaque(kind) -> bool:
    """A typedef of a pointer to a structure: a handle, whether or not the header shows what is inside."""
    if (
        kind.kind not in (TypeKind.TYPEDEF, TypeKind.ELABORATED)
        or kind.get_canonical().kind != TypeKind.POINTER
    ):
        return False
    return kind.get_canonical().get_pointee().kind in (TypeKind.RECORD, TypeKind.VOID)


def _handle(kind) -> str:
    name = kind.spelling.replace("const ", "").replace("struct ", "").replace("Const", "").strip()
    return NAMED.get(name) or re.sub(r"_t$", "", name).split("::")[-1]
