// SPDX-License-Identifier: Apache-2.0
//! Digits in 4 bits, without Python: digits MODEL LIBRARY IMAGES
//!
//! LIBRARY is anybit's custom operator library, IMAGES a NumPy file (.npy) of 8x8 float32 images.
//! Prints the predicted digit and its score per image.
//!
//! This needs no crates: ONNX Runtime's C API is a table of functions with stable indices. With the
//! crate `ort`, use `Session::builder()?.with_operator_library(library)?`.

use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::null_mut;

type Handle = *mut c_void; // any object of ONNX Runtime; a null status is success

#[repr(C)]
struct ApiBase {
    get_api: extern "C" fn(version: u32) -> *const Handle,
    get_version: extern "C" fn() -> *const c_char,
}

#[link(name = "onnxruntime")]
extern "C" {
    fn OrtGetApiBase() -> *const ApiBase;
}

const API_VERSION: u32 = 17;
const PIXELS: usize = 64;
const DIGITS: usize = 10;

struct Api(*const Handle);

impl Api {
    /// Returns the function at an index of the table.
    unsafe fn at<Function: Copy>(&self, place: usize) -> Function {
        std::mem::transmute_copy(&*self.0.add(place))
    }

    unsafe fn check(&self, status: Handle) -> Result<(), String> {
        if status.is_null() {
            return Ok(());
        }
        let message: extern "C" fn(Handle) -> *const c_char = self.at(2);
        Err(CStr::from_ptr(message(status)).to_string_lossy().into_owned())
    }
}

#[cfg(not(windows))]
fn path(text: &str) -> Vec<u8> {
    text.bytes().chain([0]).collect()
}
#[cfg(windows)]
fn path(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

fn images_of(path: &str) -> Result<Vec<f32>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {}", path, error))?;
    // Format: eight bytes of magic, two bytes of header length, the header, the values.
    let start = match bytes.get(8..10) {
        Some(length) => 10 + usize::from(u16::from_le_bytes([length[0], length[1]])),
        None => usize::MAX,
    };
    let numbers = bytes.get(start..).ok_or(format!("{} is not an .npy file", path))?;
    let float = |each: &[u8]| f32::from_le_bytes([each[0], each[1], each[2], each[3]]);
    Ok(numbers.chunks_exact(4).map(float).collect())
}

/// Returns the scores of all images.
unsafe fn scores(model: &str, library: &str, images: &mut [f32]) -> Result<Vec<f32>, String> {
    let table = ((*OrtGetApiBase()).get_api)(API_VERSION);
    if table.is_null() {
        return Err("ONNX Runtime 1.17 or newer is needed".into());
    }
    let api = Api(table);
    let (mut env, mut options, mut session) = (null_mut(), null_mut(), null_mut());
    let (mut memory, mut x, mut y) = (null_mut(), null_mut(), null_mut());
    let (model, library) = (path(model), path(library));
    let name = CString::new("digits").unwrap();
    let (input, output) = (CString::new("x").unwrap(), CString::new("y").unwrap());

    let create_env: extern "C" fn(c_int, *const c_char, *mut Handle) -> Handle = api.at(3);
    api.check(create_env(2, name.as_ptr(), &mut env))?; // warnings
    let create_options: extern "C" fn(*mut Handle) -> Handle = api.at(10);
    api.check(create_options(&mut options))?;
    let register_library: extern "C" fn(Handle, *const c_void) -> Handle = api.at(228);
    api.check(register_library(options, library.as_ptr().cast()))?;
    let create_session: extern "C" fn(Handle, *const c_void, Handle, *mut Handle) -> Handle =
        api.at(7);
    api.check(create_session(env, model.as_ptr().cast(), options, &mut session))?;
    let create_memory_info: extern "C" fn(c_int, c_int, *mut Handle) -> Handle = api.at(69);
    api.check(create_memory_info(1, 0, &mut memory))?; // an arena, the default

    let rows = images.len() / PIXELS;
    let shape = [rows as i64, 8, 8];
    #[allow(clippy::type_complexity)]
    let create_tensor: extern "C" fn(
        Handle, *mut f32, usize, *const i64, usize, c_int, *mut Handle,
    ) -> Handle = api.at(49);
    let bytes = images.len() * 4;
    let data = images.as_mut_ptr();
    api.check(create_tensor(memory, data, bytes, shape.as_ptr(), shape.len(), 1, &mut x))?;
    #[allow(clippy::type_complexity)]
    let run: extern "C" fn(
        Handle, Handle, *const *const c_char, *const Handle, usize, *const *const c_char, usize,
        *mut Handle,
    ) -> Handle = api.at(9);
    let (inputs, outputs) = ([input.as_ptr()], [output.as_ptr()]);
    api.check(run(session, null_mut(), inputs.as_ptr(), &x, 1, outputs.as_ptr(), 1, &mut y))?;
    let get_data: extern "C" fn(Handle, *mut *const f32) -> Handle = api.at(51);
    let mut found = std::ptr::null();
    api.check(get_data(y, &mut found))?;
    Ok(std::slice::from_raw_parts(found, rows * DIGITS).to_vec())
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, model, library, images] = match <[String; 4]>::try_from(words) {
        Ok(words) => words,
        Err(_) => {
            eprintln!("digits MODEL LIBRARY IMAGES");
            std::process::exit(2);
        }
    };
    let found = images_of(&images)
        .and_then(|mut images| unsafe { scores(&model, &library, &mut images) })
        .unwrap_or_else(|error| {
            eprintln!("{}", error);
            std::process::exit(1);
        });
    for scores in found.chunks_exact(DIGITS) {
        let best = (1..DIGITS).fold(0, |best, i| if scores[i] > scores[best] { i } else { best });
        println!("{} {:.6}", best, scores[best]);
    }
}
