// main FOLDER TOKENS [fail] < prompt: stream an answer, then print its token ids and what each token took.
mod llm;

use std::ffi::{c_void, CString};
use std::io::{Read, Write};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::{any::Any, ptr, slice};

struct Model(u64);

/// What C passes on to `trampoline`: the closure, and the panic that it ended with.
struct Receiver<'a> {
    on_text: &'a mut dyn FnMut(&str),
    panic: Option<Box<dyn Any + Send>>,
}

extern "C" fn trampoline(text: *const u8, size: usize, user: *mut c_void) -> i32 {
    let receiver = unsafe { &mut *(user as *mut Receiver) };
    let bytes = unsafe { slice::from_raw_parts(text, size) };
    let call = || (receiver.on_text)(std::str::from_utf8(bytes).expect("the library passes on whole characters"));
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(()) => 0,
        Err(panic) => {
            receiver.panic = Some(panic); // may not pass through C
            1
        }
    }
}

fn check(status: i32) -> Result<(), String> {
    if status == llm::LLM_OK {
        return Ok(());
    }
    let mut buffer = vec![0u8; unsafe { llm::llm_last_error(ptr::null_mut(), 0) }];
    unsafe { llm::llm_last_error(buffer.as_mut_ptr(), buffer.len()) };
    buffer.pop();
    Err(String::from_utf8_lossy(&buffer).into_owned())
}

impl Model {
    fn open(folder: &str) -> Result<Model, String> {
        let (folder, device) = (CString::new(folder).unwrap(), CString::new("CPU").unwrap());
        let mut handle = 0;
        let version = llm::LLM_VERSION as u32;
        let (folder, device) = (folder.as_ptr() as *const u8, device.as_ptr() as *const u8);
        check(unsafe { llm::llm_open(version, folder, device, ptr::null(), ptr::null(), 0, &mut handle) })?;
        Ok(Model(handle))
    }

    fn generate(&self, prompt: &[u8], tokens: usize, on_text: &mut dyn FnMut(&str)) -> Result<(Vec<i64>, llm::llm_result), String> {
        let mut receiver = Receiver { on_text, panic: None };
        let mut ids = vec![0i64; tokens];
        let mut result = llm::llm_result::default();
        let user = &mut receiver as *mut Receiver as *mut c_void;
        let status = unsafe {
            llm::llm_generate(self.0, prompt.as_ptr(), prompt.len(), tokens as u32, 0, Some(trampoline), user,
                              ids.as_mut_ptr(), ids.len(), &mut result)
        };
        if let Some(panic) = receiver.panic {
            resume_unwind(panic);
        }
        check(status)?;
        ids.truncate(result.new_tokens as usize);
        Ok((ids, result))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { llm::llm_close(self.0) };
    }
}

fn run() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().collect();
    let tokens: usize = arguments[2].parse().expect("TOKENS is a number");
    let mut prompt = Vec::new();
    std::io::stdin().read_to_end(&mut prompt).map_err(|error| error.to_string())?;
    let model = Model::open(&arguments[1])?;

    let (mut pieces, fail) = (0, arguments.len() > 3);
    let mut show = |text: &str| {
        print!("{text}");
        std::io::stdout().flush().unwrap();
        pieces += 1;
        if fail && pieces == 3 {
            panic!("at the third piece");
        }
    };
    let first = catch_unwind(AssertUnwindSafe(|| model.generate(&prompt, tokens, &mut show)));
    let (ids, result) = match first {
        Ok(answer) => answer?,
        Err(panic) => {
            eprintln!("The callback failed: {}", panic.downcast_ref::<&str>().unwrap_or(&"a panic"));
            println!();
            model.generate(&prompt, tokens, &mut show)?
        }
    };
    let listed: Vec<String> = ids.iter().map(|id| id.to_string()).collect();
    let count = ids.len() as f64;
    println!("\nids: {}", listed.join(" "));
    println!("ms per token: {:.3}, in the model: {:.3}", (result.whole_ms - result.tokenize_ms) / count, result.infer_ms / count);
    Ok(())
}

fn main() {
    if let Err(sentence) = run() {
        eprintln!("{sentence}");
        std::process::exit(1);
    }
}
