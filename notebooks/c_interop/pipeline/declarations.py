"""Generated from llm.h by `python -m notebooks.c_interop.convert.bindings`; do not edit."""

import ctypes

LLM_VERSION = 1
LLM_OK = 0
LLM_BAD_ARGUMENT = 1
LLM_BAD_HANDLE = 2
LLM_TOO_SMALL = 3
LLM_BUSY = 4
LLM_NOT_FOUND = 5
LLM_WRONG_VERSION = 6
LLM_FAILED = 7
LLM_END = 0
LLM_LENGTH = 1
LLM_STOPPED = 2
LLM_CANCELLED = 3

llm_callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class llm_result(ctypes.Structure):
    _fields_ = [
        ("prompt_tokens", ctypes.c_uint64),
        ("new_tokens", ctypes.c_uint64),
        ("reason", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("tokenize_ms", ctypes.c_double),
        ("first_ms", ctypes.c_double),
        ("infer_ms", ctypes.c_double),
        ("detokenize_ms", ctypes.c_double),
        ("whole_ms", ctypes.c_double),
    ]


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Set the types of all functions of a library."""
    library.llm_open.restype = ctypes.c_int32
    library.llm_open.argtypes = [
        ctypes.c_uint32,  # version
        ctypes.c_char_p,  # folder
        ctypes.c_char_p,  # device
        ctypes.c_char_p,  # tokenizers
        ctypes.POINTER(ctypes.c_char_p),  # properties
        ctypes.c_size_t,  # property_count
        ctypes.POINTER(ctypes.c_uint64),  # handle
    ]
    library.llm_generate.restype = ctypes.c_int32
    library.llm_generate.argtypes = [
        ctypes.c_uint64,  # handle
        ctypes.c_char_p,  # prompt
        ctypes.c_size_t,  # prompt_size
        ctypes.c_uint32,  # max_new_tokens
        ctypes.c_uint32,  # ignore_end
        llm_callback,  # callback
        ctypes.c_void_p,  # user
        ctypes.POINTER(ctypes.c_int64),  # ids
        ctypes.c_size_t,  # ids_size
        ctypes.POINTER(llm_result),  # result
    ]
    library.llm_cancel.restype = ctypes.c_int32
    library.llm_cancel.argtypes = [
        ctypes.c_uint64,  # handle
    ]
    library.llm_close.restype = ctypes.c_int32
    library.llm_close.argtypes = [
        ctypes.c_uint64,  # handle
    ]
    library.llm_last_error.restype = ctypes.c_size_t
    library.llm_last_error.argtypes = [
        ctypes.c_char_p,  # buffer
        ctypes.c_size_t,  # size
    ]
    library.llm_version.restype = ctypes.c_uint32
    library.llm_version.argtypes = []
    return library
