//! Memory that this process can do without until it works again, and memory that it is going to use.

use std::ptr::{addr_of, without_provenance_mut};

use rustix::mm::{Advice, madvise};

/// Bytes of a page.
const PAGE: usize = 4096;

/// How far below the caller the stack is given back: what the kernel maps of it at the start of a program.
const STACK: usize = 128 << 10;

unsafe extern "C" {
    /// Where the linker has put the first byte of the program,
    static __executable_start: u8;
    /// and the end of its code.
    static etext: u8;
}

/// Bytes of a page of this kernel.
pub fn page_size() -> usize {
    // SAFETY: it reads a word that every program is started with.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(PAGE)
}

/// Gives back free heap, the stack below the caller, and the mappings of code and constants. All of it comes back by
/// page faults as it is used: heap and stack as zeroes, the others from the page cache, which keeps them.
///
/// A part of its caller, or the caller's code and this would have to come back at once.
#[inline(always)]
pub fn give_back() {
    // SAFETY: it touches what is free, and nothing else.
    unsafe { libc::malloc_trim(0) };
    let here = 0_u8;
    // The page of this frame and the one below it stay.
    let end = (addr_of!(here) as usize & !(PAGE - 1)).saturating_sub(PAGE);
    forget(end.saturating_sub(STACK), end);
    forget(
        addr_of!(__executable_start) as usize,
        addr_of!(etext) as usize & !(PAGE - 1),
    );
}

/// `start` and `end` are those of free stack, or of what is mapped from the program and never written. A part that is
/// not mapped at all is passed over.
#[inline(always)]
fn forget(start: usize, end: usize) {
    let start = start.next_multiple_of(PAGE);
    let Some(length) = end.checked_sub(start) else {
        return;
    };
    let start = without_provenance_mut(start);
    // SAFETY: nothing lives in free stack, and pages of the program that are not written are read again as they were.
    // It fails where a part is not mapped, after it has done the rest.
    let _ = unsafe { madvise(start, length, Advice::LinuxDontNeed) };
}

/// How much of the heap malloc asks for at once.
const HEAP: usize = 128 << 10;

/// Has the kernel map the end of the heap, which is free when a program begins, in one call: page by page is a fault
/// each, and a program that ends after a millisecond spends a tenth of it on those. Before Linux 5.14 it is nothing.
pub fn warm_heap() {
    // SAFETY: it asks where the heap ends.
    let end = unsafe { libc::sbrk(0) } as usize;
    let Some(start) = end.checked_sub(HEAP) else {
        return;
    };
    let start = without_provenance_mut(start & !(PAGE - 1));
    // SAFETY: what is mapped keeps its contents, and at what is not it stops with an error.
    let _ = unsafe { madvise(start, HEAP, Advice::LinuxPopulateWrite) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses stack and code that is given back.
    fn work(depth: u32) -> String {
        let words = std::array::from_fn::<_, 64, _>(|index| index + depth as usize);
        match depth {
            0 => format!("{words:?}"),
            _ => work(depth - 1),
        }
    }

    fn end_of_heap() -> usize {
        // SAFETY: it asks where the heap ends.
        unsafe { libc::sbrk(0) as usize }
    }

    #[test]
    fn a_warm_heap_is_mapped_and_has_what_it_had() {
        let before: Vec<Vec<u8>> = (0..64).map(|byte| vec![byte; 3000]).collect();
        let end = loop {
            // SAFETY: more heap, which nobody has used. Malloc knows that others ask for some, and does not use it.
            unsafe { libc::sbrk(HEAP as libc::intptr_t) };
            let end = end_of_heap();
            warm_heap();
            // Another thread may need more of it meanwhile.
            if end_of_heap() == end {
                break end;
            }
        };
        let mut mapped = [0_u8; HEAP / PAGE];
        let start = without_provenance_mut((end - HEAP) & !(PAGE - 1));
        // SAFETY: it writes a byte for each page.
        let asked = unsafe { libc::mincore(start, HEAP, mapped.as_mut_ptr()) };
        assert_eq!(asked, 0);
        assert!(mapped.iter().all(|page| page & 1 == 1), "{mapped:?}");
        assert!((0..64).zip(&before).all(|(byte, all)| *all == [byte; 3000]));
    }

    #[test]
    fn everything_is_as_before_afterwards() {
        let before = (vec![7_u8; 100_000], work(20));
        give_back();
        assert_eq!(before, (vec![7; 100_000], work(20)));
    }
}
