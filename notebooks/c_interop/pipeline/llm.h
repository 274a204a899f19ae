/* A language model as six C functions, for any language that can call C.
 *
 * Every size is an argument and no function has a variable number of arguments. A handle is a number, so a handle that
 * was closed is an error and no crash. Text is UTF-8. Every function may be called from any thread. */
#ifndef LLM_H
#define LLM_H

#include <stddef.h>
#include <stdint.h>

#define LLM_VERSION 1 /* of this header: llm_open takes it and compares it with that of the library */

#if defined(_WIN32)
#define LLM_API __declspec(dllexport)
#else
#define LLM_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    LLM_OK = 0,
    LLM_BAD_ARGUMENT = 1, /* NULL, a size of 0, a prompt that is no UTF-8 */
    LLM_BAD_HANDLE = 2,   /* never opened, or closed */
    LLM_TOO_SMALL = 3,    /* a buffer of the caller */
    LLM_BUSY = 4,         /* closed while it generates */
    LLM_NOT_FOUND = 5,    /* a file of the model */
    LLM_WRONG_VERSION = 6,
    LLM_FAILED = 7 /* OpenVINO reports an error */
} llm_status;

typedef enum {
    LLM_END = 0,      /* the model ended its answer */
    LLM_LENGTH = 1,   /* max_new_tokens were made */
    LLM_STOPPED = 2,  /* the callback asked for it */
    LLM_CANCELLED = 3 /* llm_cancel was called */
} llm_reason;

typedef uint64_t llm_handle;

/* Gets the text as it is made: `size` bytes of whole UTF-8 characters, which are gone after the call. Returns 0 to go
 * on, anything else to stop. It must not throw: an exception of another language may not pass through C. */
typedef int32_t (*llm_callback)(const char* text, size_t size, void* user);

typedef struct {
    uint64_t prompt_tokens;
    uint64_t new_tokens;
    int32_t reason;      /* an llm_reason */
    int32_t reserved;    /* 0 */
    double tokenize_ms;
    double first_ms;     /* the first run of the model, which reads the prompt */
    double infer_ms;     /* all runs of the model */
    double detokenize_ms;
    double whole_ms;     /* of llm_generate, with the callbacks */
} llm_result;

/* Open the folder of a model: openvino_model.xml with its state inside, openvino_tokenizer.xml,
 * openvino_detokenizer.xml, generation_config.json.
 *
 * version: LLM_VERSION. tokenizers: the path of libopenvino_tokenizers, or NULL for the one that this library was built
 * for. properties: for compiling, name and value by turns; `property_count` counts the names. */
LLM_API llm_status llm_open(uint32_t version, const char* folder, const char* device, const char* tokenizers,
                            const char* const* properties, size_t property_count, llm_handle* handle);

/* Continue a prompt, always with the most probable token. Several threads may do so with one handle.
 *
 * ignore_end: 1 to go on after the end of the answer. callback: may be NULL. ids: gets the tokens; it has room for
 * `ids_size` of them, at least max_new_tokens. result: may be NULL. */
LLM_API llm_status llm_generate(llm_handle handle, const char* prompt, size_t prompt_size, uint32_t max_new_tokens,
                                uint32_t ignore_end, llm_callback callback, void* user, int64_t* ids, size_t ids_size,
                                llm_result* result);

/* End what is generated with this handle now, in all threads, before its next token. */
LLM_API llm_status llm_cancel(llm_handle handle);

/* Free everything of a handle. */
LLM_API llm_status llm_close(llm_handle handle);

/* Copy the sentence of this thread's last error, with a final 0. Returns the size that it needs; a smaller buffer gets
 * its beginning. */
LLM_API size_t llm_last_error(char* buffer, size_t size);

/* LLM_VERSION of the library. */
LLM_API uint32_t llm_version(void);

#ifdef __cplusplus
}
#endif
#endif
