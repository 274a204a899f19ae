// Generated from llm.h by `python -m notebooks.c_interop.convert.bindings`; do not edit.
#![allow(non_camel_case_types, dead_code)]
use std::ffi::c_void;

pub const LLM_VERSION: i32 = 1;
pub const LLM_OK: i32 = 0;
pub const LLM_BAD_ARGUMENT: i32 = 1;
pub const LLM_BAD_HANDLE: i32 = 2;
pub const LLM_TOO_SMALL: i32 = 3;
pub const LLM_BUSY: i32 = 4;
pub const LLM_NOT_FOUND: i32 = 5;
pub const LLM_WRONG_VERSION: i32 = 6;
pub const LLM_FAILED: i32 = 7;
pub const LLM_END: i32 = 0;
pub const LLM_LENGTH: i32 = 1;
pub const LLM_STOPPED: i32 = 2;
pub const LLM_CANCELLED: i32 = 3;

pub type llm_callback = Option<extern "C" fn(*const u8, usize, *mut c_void) -> i32>;

#[repr(C)]
#[derive(Default)]
pub struct llm_result {
    pub prompt_tokens: u64,
    pub new_tokens: u64,
    pub reason: i32,
    pub reserved: i32,
    pub tokenize_ms: f64,
    pub first_ms: f64,
    pub infer_ms: f64,
    pub detokenize_ms: f64,
    pub whole_ms: f64,
}

#[link(name = "llm")]
extern "C" {
    pub fn llm_open(
        version: u32,
        folder: *const u8,
        device: *const u8,
        tokenizers: *const u8,
        properties: *const *const u8,
        property_count: usize,
        handle: *mut u64
    ) -> i32;
    pub fn llm_generate(
        handle: u64,
        prompt: *const u8,
        prompt_size: usize,
        max_new_tokens: u32,
        ignore_end: u32,
        callback: llm_callback,
        user: *mut c_void,
        ids: *mut i64,
        ids_size: usize,
        result: *mut llm_result
    ) -> i32;
    pub fn llm_cancel(
        handle: u64
    ) -> i32;
    pub fn llm_close(
        handle: u64
    ) -> i32;
    pub fn llm_last_error(
        buffer: *mut u8,
        size: usize
    ) -> usize;
    pub fn llm_version() -> u32;
}
