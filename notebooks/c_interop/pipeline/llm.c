/* llm.h over libopenvino_c, the C library of OpenVINO's Python package.
 *
 *     prompt -- tokenizer --> ids -- language model, again and again --> ids -- detokenizer --> text
 *
 * All three are OpenVINO models. The language model keeps its cache inside, as the state of an infer request, and the C
 * library cannot empty it: each sequence gets a request of its own. */
#include "llm.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "openvino/c/openvino.h"

#if !defined(LLM_OPENVINO) || !defined(LLM_TOKENIZERS)
#error "Define LLM_OPENVINO (version, such as \"2026.4.1\") and LLM_TOKENIZERS (path of libopenvino_tokenizers)."
#endif

#define MODELS 64 /* open at a time */
#define ENDS 16   /* tokens that end an answer */
#define PATH_SIZE 4096

typedef struct {
    ov_core_t* core;
    ov_compiled_model_t *tokenizer, *model, *detokenizer;
    int takes_positions;
    int64_t ends[ENDS];
    size_t end_count;
} llm;

/* --- Errors -------------------------------------------------------------------------------------------------------- */

static _Thread_local char last_error[1024];

static llm_status fail(llm_status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

/* OpenVINO's messages have many lines; the last one says what is wrong. */
static llm_status openvino_failed(ov_status_e status, const char* what, const char* name) {
    const char* text = ov_get_last_err_msg();
    const char* reason = text ? text : ov_get_error_info(status);
    size_t end = strlen(reason);
    while (end && (reason[end - 1] == '\n' || reason[end - 1] == '.')) end--;
    size_t begin = end;
    while (begin && reason[begin - 1] != '\n') begin--;
    fail(LLM_FAILED, "%s %s: %.*s.", what, name, (int)(end - begin), reason + begin);
    if (text) ov_free(text);
    return LLM_FAILED;
}

/* Leave the function at its label `end` where a call of OpenVINO fails. */
#define TRY(call, what, name)                                  \
    do {                                                       \
        ov_status_e code_ = (call);                            \
        if (code_ != OK) {                                     \
            status = openvino_failed(code_, (what), (name));   \
            goto end;                                          \
        }                                                      \
    } while (0)

size_t llm_last_error(char* buffer, size_t size) {
    if (buffer && size) snprintf(buffer, size, "%s", last_error);
    return strlen(last_error) + 1;
}

uint32_t llm_version(void) { return LLM_VERSION; }

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* --- Handles: a number for each open model ------------------------------------------------------------------------- */

static struct {
    llm* model;
    uint32_t serial;  /* counts the models that had this place; the upper half of the handle */
    uint32_t running; /* sequences that are generated */
    atomic_uint cancellations;
} places[MODELS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The place of a handle, or -1 and an error. The lock is held. */
static int place_of(llm_handle handle) {
    uint32_t place = (uint32_t)handle - 1;
    if (place < MODELS && places[place].model && places[place].serial == handle >> 32) return (int)place;
    fail(LLM_BAD_HANDLE, "The handle %llu is not open: it was closed, or llm_open never returned it.",
         (unsigned long long)handle);
    return -1;
}

static llm_status keep(llm* model, llm_handle* handle) {
    llm_status status = LLM_BUSY;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < MODELS && status; i++)
        if (!places[i].model) {
            places[i].model = model;
            *handle = (uint64_t)++places[i].serial << 32 | (i + 1);
            status = LLM_OK;
        }
    pthread_mutex_unlock(&lock);
    return status ? fail(status, "%d models are open, and there can be no more. Close one.", MODELS) : status;
}

static void release(llm* model) {
    if (model->detokenizer) ov_compiled_model_free(model->detokenizer);
    if (model->model) ov_compiled_model_free(model->model);
    if (model->tokenizer) ov_compiled_model_free(model->tokenizer);
    if (model->core) ov_core_free(model->core);
    free(model);
}

llm_status llm_close(llm_handle handle) {
    llm* model = NULL;
    llm_status status = LLM_OK;
    pthread_mutex_lock(&lock);
    int place = place_of(handle);
    if (place < 0) {
        status = LLM_BAD_HANDLE;
    } else if (places[place].running) {
        status = fail(LLM_BUSY, "The model generates in %u threads. Call llm_cancel, and close it when they have ended.",
                      places[place].running);
    } else {
        model = places[place].model;
        places[place].model = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (model) release(model);
    return status;
}

llm_status llm_cancel(llm_handle handle) {
    pthread_mutex_lock(&lock);
    int place = place_of(handle);
    if (place >= 0) places[place].cancellations++;
    pthread_mutex_unlock(&lock);
    return place < 0 ? LLM_BAD_HANDLE : LLM_OK;
}

/* --- Opening ------------------------------------------------------------------------------------------------------- */

/* A file's contents with a final 0, or NULL and an error. */
static char* read_file(const char* folder, const char* name, size_t* size) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE* file = fopen(path, "rb");
    char* text = NULL;
    if (file && !fseek(file, 0, SEEK_END)) {
        long length = ftell(file);
        rewind(file);
        if (length >= 0 && (text = malloc((size_t)length + 1))) {
            *size = fread(text, 1, (size_t)length, file);
            text[*size] = 0;
        }
    }
    if (file) fclose(file);
    if (!text) fail(LLM_NOT_FOUND, "There is no %s in the folder %s. Give the folder of a converted model.", name, folder);
    return text;
}

/* The tokens that end an answer: "eos_token_id": 2 or "eos_token_id": [2, 0]. */
static void read_ends(const char* text, llm* model) {
    const char* at = strstr(text, "\"eos_token_id\"");
    if (!at || !(at = strchr(at, ':'))) return;
    at += 1 + strspn(at + 1, " \t\n\r[");
    for (char* after; model->end_count < ENDS; at = after + strspn(after, " \t\n\r,")) {
        int64_t id = strtoll(at, &after, 10);
        if (after == at) return;
        model->ends[model->end_count++] = id;
    }
}

typedef struct {
    unsigned from, from_port, to, to_port;
    const char* text; /* where it stands in the XML */
} edge;

/* The edge of an IR's XML into a port of a layer, or the first out of a layer; 0 if there is none. */
static int find_edge(const char* xml, int into, unsigned layer, unsigned port, edge* e) {
    const char* format = "<edge from-layer=\"%u\" from-port=\"%u\" to-layer=\"%u\" to-port=\"%u\"";
    for (e->text = strstr(xml, "<edge "); e->text; e->text = strstr(e->text + 1, "<edge "))
        if (sscanf(e->text, format, &e->from, &e->from_port, &e->to, &e->to_port) == 4)
            if (into ? e->to == layer && e->to_port == port : e->from == layer) return 1;
    return 0;
}

/* The layer with an id and a type; with a NULL id, the first one of the type, whose id is returned. */
static int find_layer(const char* xml, const char* type, const unsigned* wanted, unsigned* id) {
    char name[64];
    for (const char* at = strstr(xml, "<layer "); at; at = strstr(at + 1, "<layer "))
        if (sscanf(at, "<layer id=\"%u\" name=\"%*[^\"]\" type=\"%63[^\"]\"", id, name) == 2 && !strcmp(name, type))
            if (!wanted || *wanted == *id) return 1;
    return 0;
}

/* A detokenizer ends in StringTensorPack, whose output are C++ strings, which C cannot read. Its third input are their
 * bytes: let the result of the model read them there. UTF8Validate before it would take the beginning of a character,
 * which has no end yet, for a fault: leave it out. Returns the changed XML, or NULL. */
static char* with_bytes_as_result(const char* xml) {
    unsigned pack, validate;
    edge bytes, result;
    if (!find_layer(xml, "StringTensorPack", NULL, &pack)) return NULL;
    if (!find_edge(xml, 1, pack, 2, &bytes) || !find_edge(xml, 0, pack, 0, &result)) return NULL;
    if (find_layer(xml, "UTF8Validate", &bytes.from, &validate) && !find_edge(xml, 1, validate, 2, &bytes)) return NULL;
    const char* rest = strchr(result.text, '>');
    char* changed = rest ? malloc(strlen(xml) + 128) : NULL;
    if (changed)
        sprintf(changed, "%.*s<edge from-layer=\"%u\" from-port=\"%u\" to-layer=\"%u\" to-port=\"%u\" /%s",
                (int)(result.text - xml), xml, bytes.from, bytes.from_port, result.to, result.to_port, rest);
    return changed;
}

static llm_status compile_detokenizer(llm* model, const char* folder) {
    const char* what = "The detokenizer cannot be compiled in the folder";
    llm_status status = LLM_NOT_FOUND;
    size_t size, weights_size;
    ov_tensor_t* weights = NULL;
    ov_model_t* read = NULL;
    char *changed = NULL, *bytes = NULL, *xml = read_file(folder, "openvino_detokenizer.xml", &size);
    if (!xml || !(bytes = read_file(folder, "openvino_detokenizer.bin", &weights_size))) goto end;
    if (!(changed = with_bytes_as_result(xml))) {
        status = fail(LLM_FAILED, "openvino_detokenizer.xml in %s makes no strings. Convert the tokenizer again.", folder);
        goto end;
    }
    int64_t dims[] = {(int64_t)weights_size};
    void* data;
    status = LLM_OK;
    TRY(ov_tensor_create(U8, (ov_shape_t){1, dims}, &weights), what, folder);
    TRY(ov_tensor_data(weights, &data), what, folder);
    memcpy(data, bytes, weights_size);
    TRY(ov_core_read_model_from_memory_buffer(model->core, changed, strlen(changed), weights, &read), what, folder);
    TRY(ov_core_compile_model_props(model->core, read, "CPU", 0, NULL, &model->detokenizer), what, folder);
end:
    if (read) ov_model_free(read);
    if (weights) ov_tensor_free(weights);
    free(changed);
    free(bytes);
    free(xml);
    return status;
}

static int has_input(const ov_compiled_model_t* model, const char* name) {
    ov_output_const_port_t* port = NULL;
    int found = ov_compiled_model_input_by_name(model, name, &port) == OK;
    if (port) ov_output_const_port_free(port);
    return found;
}

static llm_status check_versions(uint32_t version) {
    if (version != LLM_VERSION)
        return fail(LLM_WRONG_VERSION, "The program was written for version %u of llm.h, the library has version %d. "
                    "Compile both with the same header.", version, LLM_VERSION);
    ov_version_t found;
    if (ov_get_openvino_version(&found) != OK) return fail(LLM_FAILED, "OpenVINO does not say its version.");
    size_t length = strlen(LLM_OPENVINO);
    int same = !strncmp(found.buildNumber, LLM_OPENVINO, length) && found.buildNumber[length] != '.';
    if (!same) fail(LLM_WRONG_VERSION, "The library was built for OpenVINO %s, and %.60s was loaded. Build it again.",
                    LLM_OPENVINO, found.buildNumber);
    ov_version_free(&found);
    return same ? LLM_OK : LLM_WRONG_VERSION;
}

llm_status llm_open(uint32_t version, const char* folder, const char* device, const char* tokenizers,
                    const char* const* properties, size_t property_count, llm_handle* handle) {
    if (!folder || !device || !handle || (property_count && !properties))
        return fail(LLM_BAD_ARGUMENT, "llm_open needs a folder, a device and a place for the handle; one is NULL.");
    *handle = 0;
    for (size_t i = 0; i < 2 * property_count; i++)
        if (!properties[i]) return fail(LLM_BAD_ARGUMENT, "Name or value of property %zu is NULL.", i / 2);
    if (strlen(folder) > PATH_SIZE - 64) return fail(LLM_BAD_ARGUMENT, "The folder's path is too long.");
    llm_status status = check_versions(version);
    if (status) return status;
    size_t size;
    char *path = NULL, *config = read_file(folder, "generation_config.json", &size);
    if (!config) return LLM_NOT_FOUND;
    llm* model = calloc(1, sizeof *model);
    ov_property_t* pairs = calloc(property_count + 1, sizeof *pairs);
    path = malloc(PATH_SIZE);
    if (!model || !pairs || !path) {
        status = fail(LLM_FAILED, "There is no memory for another model.");
        goto end;
    }
    read_ends(config, model);
    for (size_t i = 0; i < property_count; i++)
        pairs[i] = (ov_property_t){properties[2 * i], properties[2 * i + 1]};
    const char* extension = tokenizers ? tokenizers : LLM_TOKENIZERS;
    TRY(ov_core_create(&model->core), "OpenVINO cannot start for the folder", folder);
    TRY(ov_core_add_extension(model->core, extension), "The tokenizers cannot be loaded from", extension);
    snprintf(path, PATH_SIZE, "%s/openvino_tokenizer.xml", folder);
    TRY(ov_core_compile_model_from_file_props(model->core, path, "CPU", 0, NULL, &model->tokenizer),
        "The tokenizer cannot be compiled:", path);
    if ((status = compile_detokenizer(model, folder))) goto end;
    snprintf(path, PATH_SIZE, "%s/openvino_model.xml", folder);
    TRY(ov_core_compile_model_from_file_props(model->core, path, device, property_count, pairs, &model->model),
        "The language model cannot be compiled for the device", device);
    model->takes_positions = has_input(model->model, "position_ids");
    status = keep(model, handle);
end:
    if (status && model) release(model);
    free(path);
    free(pairs);
    free(config);
    return status;
}

/* --- Text ---------------------------------------------------------------------------------------------------------- */

/* The length of the UTF-8 character at `text`: 1 to 4; 0: its end is missing; -n: the first n bytes are none. */
static int character(const unsigned char* text, size_t size) {
    unsigned char first = text[0], low = 0x80, high = 0xBF;
    int length = first < 0x80 ? 1 : first < 0xC2 ? -1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : -1;
    if (first == 0xE0) low = 0xA0;  /* would have a shorter form */
    if (first == 0xED) high = 0x9F; /* surrogates */
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F; /* above the last character */
    for (int i = 1; i < length; i++, low = 0x80, high = 0xBF) {
        if ((size_t)i >= size) return 0;
        if (text[i] < low || text[i] > high) return -i;
    }
    return length;
}

/* Copy text to `out` [3 * size]; bytes that are no characters become U+FFFD. Returns the size, or -1 where the last
 * character has no end yet; with `last` it has none. */
static long copy_characters(const char* text, size_t size, int last, char* out) {
    long written = 0;
    for (size_t at = 0; at < size;) {
        int length = character((const unsigned char*)text + at, size - at);
        if (!length && !last) return -1;
        size_t taken = length > 0 ? (size_t)length : length < 0 ? (size_t)-length : size - at;
        const char* source = length > 0 ? text + at : "\xEF\xBF\xBD";
        size_t count = length > 0 ? taken : 3;
        memcpy(out + written, source, count);
        written += (long)count;
        at += taken;
    }
    return written;
}

/* --- Generating ---------------------------------------------------------------------------------------------------- */

typedef struct {
    ov_infer_request_t *model, *detokenizer;
    int takes_positions;
    int64_t *mask, *positions; /* all ones; 0, 1, 2 ... */
    size_t past;               /* tokens in the cache */
    size_t begin, read;        /* ids[begin, read) were decoded and passed on */
    size_t known;              /* bytes of their text */
    llm_result result;
} sequence;

static llm_status set_input(ov_infer_request_t* request, const char* name, ov_element_type_e type, void* data,
                            size_t count, int rank) {
    llm_status status = LLM_OK;
    ov_tensor_t* tensor = NULL;
    int64_t dims[] = {1, (int64_t)count};
    ov_shape_t shape = {rank, rank == 1 ? dims + 1 : dims}; /* [count] or [1, count] */
    TRY(ov_tensor_create_from_host_ptr(type, shape, data, &tensor), "There is no tensor for", name);
    TRY(ov_infer_request_set_tensor(request, name, tensor), "The model does not take", name);
end:
    if (tensor) ov_tensor_free(tensor);
    return status;
}

/* Run the model on `count` more tokens; `next` gets the most probable one to follow. */
static llm_status step(sequence* s, int64_t* ids, size_t count, int64_t* next) {
    llm_status status;
    int32_t beam = 0;
    ov_tensor_t* logits = NULL;
    size_t total;
    void* data;
    double begin = now_ms();
    if ((status = set_input(s->model, "input_ids", I64, ids, count, 2))) return status;
    if ((status = set_input(s->model, "attention_mask", I64, s->mask, s->past + count, 2))) return status;
    if (s->takes_positions && (status = set_input(s->model, "position_ids", I64, s->positions + s->past, count, 2)))
        return status;
    if ((status = set_input(s->model, "beam_idx", I32, &beam, 1, 1))) return status;
    TRY(ov_infer_request_infer(s->model), "The language model", "fails");
    TRY(ov_infer_request_get_tensor(s->model, "logits", &logits), "The language model has no", "logits");
    TRY(ov_tensor_get_size(logits, &total), "Reading failed of the", "logits");
    TRY(ov_tensor_data(logits, &data), "Reading failed of the", "logits");
    size_t vocabulary = total / count;
    const float* last = (const float*)data + total - vocabulary; /* logits are [1, count, vocabulary] */
    size_t best = 0;
    for (size_t i = 1; i < vocabulary; i++)
        if (last[i] > last[best]) best = i;
    *next = (int64_t)best;
    s->past += count;
    s->result.infer_ms += now_ms() - begin;
end:
    if (logits) ov_tensor_free(logits);
    return status;
}

/* The bytes of ids[0, count) as a tensor, which the caller frees. */
static llm_status decode(sequence* s, int64_t* ids, size_t count, ov_tensor_t** bytes, char** text, size_t* size) {
    llm_status status = LLM_OK;
    ov_tensor_t* tensor = NULL;
    int64_t dims[] = {1, (int64_t)count};
    double begin = now_ms();
    TRY(ov_tensor_create_from_host_ptr(I64, (ov_shape_t){2, dims}, ids, &tensor), "There is no tensor for", "ids");
    TRY(ov_infer_request_set_input_tensor(s->detokenizer, tensor), "The detokenizer does not take", "ids");
    TRY(ov_infer_request_infer(s->detokenizer), "The detokenizer", "fails");
    TRY(ov_infer_request_get_output_tensor(s->detokenizer, bytes), "The detokenizer has no", "result");
    TRY(ov_tensor_get_byte_size(*bytes, size), "Reading failed of the", "text");
    TRY(ov_tensor_data(*bytes, (void**)text), "Reading failed of the", "text");
    s->result.detokenize_ms += now_ms() - begin;
end:
    if (tensor) ov_tensor_free(tensor);
    return status;
}

/* Pass the text of new tokens on, unless it ends within a character. The tokens before them are decoded again, because
 * the text of a token may depend on the one before it. `stop` gets the callback's answer. */
static llm_status pass_on(sequence* s, int64_t* ids, size_t count, int last, llm_callback callback, void* user,
                          int32_t* stop) {
    ov_tensor_t* bytes = NULL;
    char *text, *whole = NULL;
    size_t size;
    llm_status status = decode(s, ids + s->begin, count - s->begin, &bytes, &text, &size);
    if (status) goto end;
    size_t fresh = size > s->known ? size - s->known : 0;
    whole = malloc(3 * fresh + 1);
    if (!whole) {
        status = fail(LLM_FAILED, "There is no memory for %zu bytes of text.", fresh);
        goto end;
    }
    long length = copy_characters(text + s->known, fresh, last, whole);
    if (length < 0) goto end;
    ov_tensor_free(bytes);
    bytes = NULL;
    s->begin = s->read;
    s->read = count;
    if (!last && (status = decode(s, ids + s->begin, s->read - s->begin, &bytes, &text, &s->known))) goto end;
    if (length) *stop = callback(whole, (size_t)length, user);
end:
    free(whole);
    if (bytes) ov_tensor_free(bytes);
    return status;
}

/* The ids of a prompt, which the caller frees. */
static llm_status tokenize(const llm* model, const char* prompt, size_t prompt_size, int64_t** ids, size_t* count) {
    llm_status status = LLM_OK;
    ov_infer_request_t* request = NULL;
    ov_tensor_t *strings = NULL, *tensor = NULL;
    ov_element_type_e type;
    int64_t dims[] = {1};
    void* data;
    char* text = calloc(prompt_size + 1, 1);
    if (!text) return fail(LLM_FAILED, "There is no memory for a prompt of %zu bytes.", prompt_size);
    memcpy(text, prompt, prompt_size);
    const char* texts[] = {text};
    TRY(ov_compiled_model_create_infer_request(model->tokenizer, &request), "The tokenizer", "fails");
    TRY(ov_tensor_create_from_string_array(texts, 1, (ov_shape_t){1, dims}, &strings), "There is no tensor for", "text");
    TRY(ov_infer_request_set_input_tensor(request, strings), "The tokenizer does not take", "text");
    TRY(ov_infer_request_infer(request), "The tokenizer", "fails");
    TRY(ov_infer_request_get_tensor(request, "input_ids", &tensor), "The tokenizer has no", "input_ids");
    TRY(ov_tensor_get_size(tensor, count), "Reading failed of the", "ids");
    TRY(ov_tensor_get_element_type(tensor, &type), "Reading failed of the", "ids");
    TRY(ov_tensor_data(tensor, &data), "Reading failed of the", "ids");
    if (type != I64 || !*count || !(*ids = malloc(*count * sizeof **ids)))
        status = fail(LLM_FAILED, "The tokenizer makes no 64-bit ids of this prompt.");
    else
        memcpy(*ids, data, *count * sizeof **ids);
end:
    if (tensor) ov_tensor_free(tensor);
    if (strings) ov_tensor_free(strings);
    if (request) ov_infer_request_free(request);
    free(text);
    return status;
}

static int ends(const llm* model, int64_t id) {
    for (size_t i = 0; i < model->end_count; i++)
        if (model->ends[i] == id) return 1;
    return 0;
}

static llm_status run(const llm* model, const atomic_uint* cancellations, const char* prompt, size_t prompt_size,
                      uint32_t max_new_tokens, uint32_t ignore_end, llm_callback callback, void* user, int64_t* ids,
                      sequence* s) {
    unsigned before = atomic_load(cancellations);
    double begin = now_ms();
    size_t count = 0;
    int32_t stop = 0;
    int64_t* prompt_ids = NULL;
    llm_status status = tokenize(model, prompt, prompt_size, &prompt_ids, &count);
    if (status) goto end;
    s->result.tokenize_ms = now_ms() - begin;
    s->result.prompt_tokens = count;
    s->mask = malloc((count + max_new_tokens) * sizeof *s->mask);
    s->positions = malloc((count + max_new_tokens) * sizeof *s->positions);
    if (!s->mask || !s->positions) {
        status = fail(LLM_FAILED, "There is no memory for %zu tokens.", count + max_new_tokens);
        goto end;
    }
    for (size_t i = 0; i < count + max_new_tokens; i++) s->mask[i] = 1, s->positions[i] = (int64_t)i;
    TRY(ov_compiled_model_create_infer_request(model->model, &s->model), "The language model", "fails");
    TRY(ov_compiled_model_create_infer_request(model->detokenizer, &s->detokenizer), "The detokenizer", "fails");
    s->takes_positions = model->takes_positions;
    s->result.reason = LLM_LENGTH;
    int64_t *input = prompt_ids;
    for (size_t made = 0; made < max_new_tokens && s->result.reason == LLM_LENGTH;) {
        if (atomic_load(cancellations) != before) {
            s->result.reason = LLM_CANCELLED;
            break;
        }
        if ((status = step(s, input, count, &ids[made]))) goto end;
        if (!made) s->result.first_ms = s->result.infer_ms;
        input = &ids[made++];
        count = 1;
        s->result.new_tokens = made;
        if (!ignore_end && ends(model, *input)) s->result.reason = LLM_END;
        int last = s->result.reason == LLM_END || made == max_new_tokens;
        if (callback && (status = pass_on(s, ids, made, last, callback, user, &stop))) goto end;
        if (stop) s->result.reason = LLM_STOPPED;
    }
end:
    if (s->model) ov_infer_request_free(s->model);
    if (s->detokenizer) ov_infer_request_free(s->detokenizer);
    free(s->mask);
    free(s->positions);
    free(prompt_ids);
    s->result.whole_ms = now_ms() - begin;
    return status;
}

static llm_status check_prompt(const char* prompt, size_t size) {
    for (size_t at = 0; at < size;) {
        int length = character((const unsigned char*)prompt + at, size - at);
        if (length < 1) return fail(LLM_BAD_ARGUMENT, "The prompt is no UTF-8 at byte %zu. Encode it as UTF-8.", at);
        if (!prompt[at]) return fail(LLM_BAD_ARGUMENT, "The prompt has a NUL at byte %zu. Remove it.", at);
        at += (size_t)length;
    }
    return LLM_OK;
}

llm_status llm_generate(llm_handle handle, const char* prompt, size_t prompt_size, uint32_t max_new_tokens,
                        uint32_t ignore_end, llm_callback callback, void* user, int64_t* ids, size_t ids_size,
                        llm_result* result) {
    if (result) memset(result, 0, sizeof *result);
    if (!prompt || !prompt_size || !ids || !max_new_tokens || max_new_tokens > 1u << 20)
        return fail(LLM_BAD_ARGUMENT, "llm_generate needs a prompt, a place for ids, and 1 to %u new tokens; got %u.",
                    1u << 20, max_new_tokens);
    if (ids_size < max_new_tokens)
        return fail(LLM_TOO_SMALL, "There is room for %zu ids, and up to %u are made. Give a larger buffer.", ids_size,
                    max_new_tokens);
    llm_status status = check_prompt(prompt, prompt_size);
    if (status) return status;
    pthread_mutex_lock(&lock);
    int place = place_of(handle);
    if (place >= 0) places[place].running++;
    pthread_mutex_unlock(&lock);
    if (place < 0) return LLM_BAD_HANDLE;
    sequence s = {0};
    status = run(places[place].model, &places[place].cancellations, prompt, prompt_size, max_new_tokens, ignore_end,
                 callback, user, ids, &s);
    pthread_mutex_lock(&lock);
    places[place].running--;
    pthread_mutex_unlock(&lock);
    if (result) *result = s.result;
    return status;
}
