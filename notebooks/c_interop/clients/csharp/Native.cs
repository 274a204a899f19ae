// Generated from llm.h by `python -m notebooks.c_interop.convert.bindings`; do not edit.
using System;
using System.Runtime.InteropServices;

static class Native
{
    public const int LLM_VERSION = 1;
    public const int LLM_OK = 0;
    public const int LLM_BAD_ARGUMENT = 1;
    public const int LLM_BAD_HANDLE = 2;
    public const int LLM_TOO_SMALL = 3;
    public const int LLM_BUSY = 4;
    public const int LLM_NOT_FOUND = 5;
    public const int LLM_WRONG_VERSION = 6;
    public const int LLM_FAILED = 7;
    public const int LLM_END = 0;
    public const int LLM_LENGTH = 1;
    public const int LLM_STOPPED = 2;
    public const int LLM_CANCELLED = 3;

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    public delegate int llm_callback(IntPtr text, UIntPtr size, IntPtr user);

    [StructLayout(LayoutKind.Sequential)]
    public struct llm_result
    {
        public ulong prompt_tokens;
        public ulong new_tokens;
        public int reason;
        public int reserved;
        public double tokenize_ms;
        public double first_ms;
        public double infer_ms;
        public double detokenize_ms;
        public double whole_ms;
    }

    [DllImport("llm", CallingConvention = CallingConvention.Cdecl)]
    public static extern int llm_open(
        uint version,
        byte[] folder,
        byte[] device,
        byte[] tokenizers,
        IntPtr[] properties,
        UIntPtr property_count,
        out ulong handle
    );

    [DllImport("llm", CallingConvention = CallingConvention.Cdecl)]
    public static extern int llm_generate(
        ulong handle,
        byte[] prompt,
        UIntPtr prompt_size,
        uint max_new_tokens,
        uint ignore_end,
        llm_callback callback,
        IntPtr user,
        [Out] long[] ids,
        UIntPtr ids_size,
        out llm_result result
    );

    [DllImport("llm", CallingConvention = CallingConvention.Cdecl)]
    public static extern int llm_cancel(
        ulong handle
    );

    [DllImport("llm", CallingConvention = CallingConvention.Cdecl)]
    public static extern int llm_close(
        ulong handle
    );

    [DllImport("llm", CallingConvention = CallingConvention.Cdecl)]
    public static extern UIntPtr llm_last_error(
        byte[] buffer,
        UIntPtr size
    );

    [DllImport("llm", CallingConvention = CallingConvention.Cdecl)]
    public static extern uint llm_version();
}
