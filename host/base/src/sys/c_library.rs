//! Settings of the C library that belong to the whole process: heap, environment, locale.

/// Keeps the C library from making a heap per thread and from holding on to freed memory: after a load the host
/// would otherwise keep half as much again. `MALLOC_ARENA_MAX`, glibc's own variable, takes precedence. Call it
/// in `main` before any other thread exists.
pub fn keep_heap_small() {
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // SAFETY: mallopt takes plain integers; called in `main`, when this thread is the only one.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
        }
    }
}

/// Takes a variable out of the environment, so that no plugin and no child sees it. Call it at the start of `main`,
/// before any other thread exists.
pub fn forget_variable(name: &str) {
    // SAFETY: called at the start of `main`, when this thread is the only one.
    unsafe { std::env::remove_var(name) };
}

/// The C library's locale for all categories.
pub fn locale() -> String {
    // SAFETY: with a null locale the call only reads; the text is copied before anyone could set another.
    unsafe {
        let text = libc::setlocale(libc::LC_ALL, std::ptr::null());
        match text.is_null() {
            true => String::new(),
            false => std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}
