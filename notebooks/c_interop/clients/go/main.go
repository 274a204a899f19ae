// main FOLDER TOKENS [fail] < prompt: stream an answer, then print its token ids and what each token took.
package main

/*
#cgo LDFLAGS: -lllm
#include <stdlib.h>
#include "llm.h"
extern int32_t goText(char* text, size_t size, void* user);
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/cgo"
	"strconv"
	"strings"
	"unsafe"
)

type model struct{ handle C.llm_handle }

// What C gives back to goText: a number that stands for it, because C may not keep pointers of Go.
type receiver struct {
	onText func([]byte)
	panic  any
}

//export goText
func goText(text *C.char, size C.size_t, user unsafe.Pointer) (stop C.int32_t) {
	r := (*(*cgo.Handle)(user)).Value().(*receiver)
	defer func() {
		if r.panic = recover(); r.panic != nil {
			stop = 1 // the panic may not pass through C
		}
	}()
	r.onText(C.GoBytes(unsafe.Pointer(text), C.int(size)))
	return 0
}

func open(folder string) (*model, error) {
	runtime.LockOSThread() // the sentence of an error belongs to the thread
	defer runtime.UnlockOSThread()
	path, device := C.CString(folder), C.CString("CPU")
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(device))
	m := &model{}
	return m, check(C.llm_open(C.LLM_VERSION, path, device, nil, nil, 0, &m.handle))
}

func (m *model) generate(prompt []byte, tokens int, onText func([]byte)) ([]int64, C.llm_result, error) {
	if len(prompt) == 0 || tokens < 1 {
		return nil, C.llm_result{}, errors.New("Give a prompt that is not empty, and 1 token or more.")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &receiver{onText: onText}
	handle := cgo.NewHandle(r)
	defer handle.Delete()
	ids := make([]int64, tokens)
	var result C.llm_result
	status := C.llm_generate(m.handle, (*C.char)(unsafe.Pointer(&prompt[0])), C.size_t(len(prompt)), C.uint32_t(tokens),
		0, C.llm_callback(C.goText), unsafe.Pointer(&handle), (*C.int64_t)(unsafe.Pointer(&ids[0])), C.size_t(tokens),
		&result)
	if r.panic != nil {
		return nil, result, fmt.Errorf("The callback failed: %v", r.panic)
	}
	return ids[:result.new_tokens], result, check(status)
}

func (m *model) close() error { return check(C.llm_close(m.handle)) }

func check(status C.llm_status) error {
	if status == C.LLM_OK {
		return nil
	}
	size := C.llm_last_error(nil, 0)
	buffer := (*C.char)(C.malloc(size))
	defer C.free(unsafe.Pointer(buffer))
	C.llm_last_error(buffer, size)
	return errors.New(C.GoString(buffer))
}

func run() error {
	tokens, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	prompt, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	m, err := open(os.Args[1])
	if err != nil {
		return err
	}
	pieces, fail := 0, len(os.Args) > 3
	show := func(text []byte) {
		os.Stdout.Write(text)
		if pieces++; fail && pieces == 3 {
			panic("at the third piece")
		}
	}
	ids, result, err := m.generate(prompt, tokens, show)
	if err != nil && fail {
		fmt.Fprintln(os.Stderr, err)
		fmt.Println()
		ids, result, err = m.generate(prompt, tokens, show)
	}
	if err != nil {
		return err
	}
	listed := strings.Trim(fmt.Sprint(ids), "[]")
	count := float64(len(ids))
	fmt.Printf("\nids: %s\nms per token: %.3f, in the model: %.3f\n", listed,
		(float64(result.whole_ms)-float64(result.tokenize_ms))/count, float64(result.infer_ms)/count)
	return m.close()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
