//! Redirects a loaded library's calls of foreign functions.
//!
//! A shared library calls the functions of others through pointers, which the loader fills in
//! (ELF's global offset table). This module overwrites them. Other libraries have tables of their
//! own.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// An entry of a relocation table.
#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
/// An address as it is, and the two kinds of entries of the table.
const R_64: u64 = 1;
const R_GLOB_DAT: u64 = 6;
const R_JUMP_SLOT: u64 = 7;

/// A loaded library.
struct Object {
    base: usize,
    dynamic: usize,
    /// Memory that the loader made read-only after filling it in: start and end.
    sealed: (usize, usize),
}

/// Redirects calls of the library that contains the address `inside`: where it calls one of the
/// names in `functions`, the function beside that name is called. Does nothing for a library that
/// is not found.
pub fn redirect_calls(inside: *const c_void, functions: &[(&CStr, *const c_void)]) {
    if let Some(object) = object_with(inside) {
        let redirect = &mut |name: &CStr, place: usize| {
            if let Some((_, function)) = functions.iter().find(|(wanted, _)| *wanted == name) {
                // SAFETY: the place of a pointer to a function of this name.
                unsafe { write(&object, place, *function) };
            }
        };
        // SAFETY: it is loaded, and stays so as long as the address may be used.
        unsafe { visit_imports(&object, redirect) };
    }
}

/// Returns true if the library that contains the address `inside` calls one of the functions `names`.
pub fn calls_any(inside: *const c_void, names: &[&CStr]) -> bool {
    let mut found = false;
    if let Some(object) = object_with(inside) {
        // SAFETY: as above.
        unsafe { visit_imports(&object, &mut |name, _| found |= names.contains(&name)) };
    }
    found
}

/// An address inside the C++ library; none if it is not loaded, or if the process has another allocator than
/// it and the C library, linked or preloaded.
pub fn cpp_library() -> Option<*const c_void> {
    let delete = c"_ZdlPv".as_ptr();
    // SAFETY: questions about loaded libraries.
    unsafe {
        let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let [own, global] = [library, libc::RTLD_DEFAULT].map(|scope| libc::dlsym(scope, delete));
        let free = libc::dlsym(libc::RTLD_DEFAULT, c"free".as_ptr());
        let is_own = (global.is_null() || global == own) && free == libc::free as *mut c_void;
        (is_own && !own.is_null()).then_some(own.cast_const())
    }
}

/// The loaded library that contains an address.
fn object_with(inside: *const c_void) -> Option<Object> {
    let mut search = (inside as usize, None);
    // SAFETY: `find` is called during this call only, with a pointer to `search`.
    unsafe { libc::dl_iterate_phdr(Some(find), (&raw mut search).cast()) };
    search.1
}

/// Keeps the library that the address is inside of.
unsafe extern "C" fn find(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: both come from `object_with` and the loader, and nobody else has them now.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<(usize, Option<Object>)>()) };
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader's own table.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let range = |header: &libc::Elf64_Phdr| {
        let start = base + header.p_vaddr as usize;
        (start, start + header.p_memsz as usize)
    };
    let of = |kind: u32| headers.iter().filter(move |header| header.p_type == kind).map(range);
    if !of(libc::PT_LOAD).any(|(start, end)| (start..end).contains(&search.0)) {
        return 0;
    }
    if let Some((dynamic, _)) = of(libc::PT_DYNAMIC).next() {
        let sealed = of(libc::PT_GNU_RELRO).next().unwrap_or((0, 0));
        search.1 = Some(Object { base, dynamic, sealed });
    }
    1
}

/// Calls `f` with the name of each function or variable that the object imports, and the place of the
/// pointer to it.
///
/// # Safety
/// The object is loaded.
unsafe fn visit_imports(object: &Object, f: &mut dyn FnMut(&CStr, usize)) {
    let value = |wanted: i64| {
        let mut entry = object.dynamic as *const Dynamic;
        loop {
            // SAFETY: the section ends with an entry of the tag null.
            match unsafe { &*entry } {
                Dynamic { tag: DT_NULL, .. } => return None,
                Dynamic { tag, value } if *tag == wanted => return Some(*value),
                // SAFETY: as above.
                Dynamic { .. } => entry = unsafe { entry.add(1) },
            }
        }
    };
    // The loader makes these addresses absolute, or leaves them relative.
    let address = |tag| value(tag).map(|at| if at < object.base { at + object.base } else { at });
    let (Some(symbols), Some(names)) = (address(DT_SYMTAB), address(DT_STRTAB)) else { return };
    for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        let (Some(table), Some(size)) = (address(table), value(size)) else { continue };
        let count = size / size_of::<Relocation>();
        // SAFETY: the library's own table, of this size.
        let entries = unsafe { slice::from_raw_parts(table as *const Relocation, count) };
        for entry in entries {
            let (symbol, kind) = ((entry.info >> 32) as usize, entry.info & 0xffff_ffff);
            let plain = kind == R_64 && entry.addend == 0;
            if symbol == 0 || !(plain || kind == R_GLOB_DAT || kind == R_JUMP_SLOT) {
                continue;
            }
            // SAFETY: relocations name entries of the table of symbols, and these their names.
            let name = unsafe {
                let symbol = &*(symbols as *const libc::Elf64_Sym).add(symbol);
                CStr::from_ptr((names + symbol.st_name as usize) as *const c_char)
            };
            f(name, object.base + entry.offset);
        }
    }
}

/// Writes a pointer where the loader has one.
///
/// # Safety
/// `place` is such a place of the object.
unsafe fn write(object: &Object, place: usize, function: *const c_void) {
    // SAFETY: a question.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = place / page * page;
    let (from, to) = object.sealed;
    let sealed = (from..to / page * page).contains(&place);
    let protect = |access| {
        // SAFETY: the page of the place, which stays readable.
        sealed.then(|| unsafe { libc::mprotect(start as *mut c_void, page, access) })
    };
    if protect(libc::PROT_READ | libc::PROT_WRITE).is_none_or(|status| status == 0) {
        // SAFETY: it can be written now; whoever reads it meanwhile has one function or the other.
        unsafe { (place as *mut *const c_void).write_volatile(function) };
        protect(libc::PROT_READ);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_of_a_library_are_found() {
        let here = imports_of_a_library_are_found as *const c_void;
        assert!(calls_any(here, &[c"free"]));
        assert!(!calls_any(here, &[c"no_such_function"]));
        assert!(!calls_any(std::ptr::null(), &[c"free"]));
    }
}
