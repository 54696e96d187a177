# SPDX-License-Identifier: Apache-2.0
"""Products of one row by ggml, the library of llama.cpp, called through ctypes."""

import ctypes
from pathlib import Path

import numpy as np
from _measure import Call

# Bits of a weight and its share of a float16 scale; and numbers of `enum ggml_type`.
BITS = {"Q8_0": 8.5, "Q4_0": 4.5, "TQ2_0": 2.0625}
_TYPES = {"Q8_0": 8, "Q4_0": 2, "TQ2_0": 35}
_FLOAT32 = 0
_CONTEXT_BYTES = 2**20


class _Params(ctypes.Structure):
    """Arguments of ggml_init: bytes, a buffer, and whether tensors are allocated elsewhere."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Library:
    """A built libggml, on one thread."""

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))
        self._backend = self._call("ggml_backend_cpu_init")
        self._call("ggml_backend_cpu_set_n_threads", self._backend, 1)
        self._device = self._call("ggml_backend_get_device", self._backend)
        self._default = self._call("ggml_backend_get_default_buffer_type", self._backend)

    def products(self, w: np.ndarray, x: np.ndarray) -> dict[tuple[str, str], Call]:
        """Return products of the row x and w [columns, depth], by format and layout."""
        calls = dict[tuple[str, str], Call]()
        for form, kind in _TYPES.items():
            for layout, buffer_type in self._layouts().items():
                if w.shape[1] % 256 == 0 and (call := self._product(kind, buffer_type, w, x)):
                    calls[form, layout] = call
        return calls

    def _call(self, name: str, *values: object) -> ctypes.c_void_p:
        function = self._functions[name]
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*values))

    def _layouts(self) -> dict[str, ctypes.c_void_p]:
        """Return the buffer types of weights: as in a file, and repacked for instructions."""
        registry = self._call("ggml_backend_dev_backend_reg", self._device)
        name = b"ggml_backend_dev_get_extra_bufts"
        address = self._call("ggml_backend_reg_get_proc_address", registry, name).value
        get_extra = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
        extra, buffer_types = get_extra(self._device), [self._default]
        while pointer := extra[len(buffer_types) - 1]:
            buffer_types.append(ctypes.c_void_p(pointer))
        return {self._name(buffer_type): buffer_type for buffer_type in buffer_types}

    def _name(self, buffer_type: ctypes.c_void_p) -> str:
        text = self._call("ggml_backend_buft_name", buffer_type)
        return (ctypes.cast(text, ctypes.c_char_p).value or b"").decode()

    def _product(
        self, kind: int, buffer_type: ctypes.c_void_p, w: np.ndarray, x: np.ndarray
    ) -> Call | None:
        """Return a product of a type and layout; None if there is no kernel."""
        columns, depth = w.shape
        weights, row = self._tensor(kind, w, buffer_type), self._tensor(_FLOAT32, x, self._default)
        context = self._call("ggml_init", _Params(_CONTEXT_BYTES, None, True))
        product = self._call("ggml_mul_mat", context, weights, row)
        supports = self._functions.ggml_backend_dev_supports_op
        supports.restype = ctypes.c_bool
        if not supports(self._device, product):
            return None
        packed = np.empty(columns * int(self._row_bytes(kind, depth)), np.uint8)
        sizes = (ctypes.c_int64(0), ctypes.c_int64(columns), ctypes.c_int64(depth))
        self._call("ggml_quantize_chunk", kind, _address(w), _address(packed), *sizes, None)
        for tensor, content in ((weights, packed), (row, x)):
            size = ctypes.c_size_t(content.nbytes)
            start = ctypes.c_size_t(0)
            self._call("ggml_backend_tensor_set", tensor, _address(content), start, size)
        graph = self._call("ggml_new_graph", context)
        self._call("ggml_build_forward_expand", graph, product)
        self._call("ggml_backend_alloc_ctx_tensors_from_buft", context, self._default)
        compute = self._functions.ggml_backend_graph_compute
        return lambda: compute(self._backend, graph)

    def _row_bytes(self, kind: int, depth: int) -> int:
        return self._call("ggml_row_size", kind, ctypes.c_int64(depth)).value or 0

    def _tensor(self, kind: int, like: np.ndarray, buffer_type: ctypes.c_void_p) -> ctypes.c_void_p:
        """Return a tensor of the shape of an array, with a buffer of its own."""
        context = self._call("ggml_init", _Params(_CONTEXT_BYTES, None, True))
        sizes = (ctypes.c_int64(size) for size in reversed(like.shape))
        tensor = self._call("ggml_new_tensor_2d", context, kind, *sizes)
        self._call("ggml_backend_alloc_ctx_tensors_from_buft", context, buffer_type)
        return tensor


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
