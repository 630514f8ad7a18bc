//! Structs that a plugin is lent for one call, at addresses that stay good after it.
//!
//! A plugin that breaks the rules may use what it was lent when the call is long over. If the memory had a new owner by
//! then, its answer would go to another job. So the structs lie in blocks whose addresses are not used again: a block
//! whose calls have all ended is replaced by a view of one shared page range in which every struct says that its call is
//! over. It takes no additional memory. Only after tens of millions of calls the oldest block is used again; the handles
//! in the structs (`handles`) never are.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::ptr;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};

/// Structs in a block. A block of so many is whole pages, whatever the size of one.
const BLOCK: usize = 4096;
/// Blocks of ended calls before the oldest is used again. Each is a mapping, of which the kernel allows 65,530.
const MAX_ENDED: usize = 8192;

/// The structs of one type.
pub struct Cells<T: Copy + 'static> {
    state: Mutex<State>,
    /// What a struct says of a call that is long over.
    long_over: T,
    /// What becomes of a struct when its call is over.
    over: fn(&T) -> T,
}

struct State {
    /// The block that is being filled: its address, and how many structs of it are used.
    filling: Option<(usize, usize)>,
    /// Structs in use, by the address of their block.
    in_use: BTreeMap<usize, usize>,
    ended: VecDeque<usize>,
    /// The file with a block of structs that are long over.
    tombstones: Option<std::fs::File>,
}

// SAFETY: the structs are plain data whose pointers are only passed on.
unsafe impl<T: Copy> Sync for Cells<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Send for Cells<T> {}

/// Structs that are lent until this is dropped.
pub struct Lent<T: Copy + 'static> {
    cells: &'static Cells<T>,
    block: usize,
    first: *mut T,
    count: usize,
}

impl<T: Copy> Lent<T> {
    pub fn as_ptr(&self) -> *const T {
        self.first
    }

    pub fn len(&self) -> usize {
        self.count
    }
}

impl<T: Copy + 'static> Cells<T> {
    const BYTES: usize = size_of::<T>() * BLOCK;

    pub const fn new(long_over: T, over: fn(&T) -> T) -> Cells<T> {
        let state =
            State { filling: None, in_use: BTreeMap::new(), ended: VecDeque::new(), tombstones: None };
        Cells { state: Mutex::new(state), long_over, over }
    }

    /// Lends copies of these values, side by side.
    pub fn lend(&'static self, values: &[T]) -> Lent<T> {
        let (block, first) = self.take(values.len());
        let first = first as *mut T;
        for (i, value) in values.iter().enumerate() {
            // SAFETY: `take` has found room for so many that no other call uses.
            unsafe { first.add(i).write(*value) };
        }
        Lent { cells: self, block, first, count: values.len() }
    }

    /// The addresses of a block and of the first of `count` unused structs in it.
    fn take(&self, count: usize) -> (usize, usize) {
        let mut state = self.state.lock();
        if count > BLOCK {
            // A batch of thousands of jobs: kept permanently.
            let all = Box::leak(vec![self.long_over; count].into_boxed_slice());
            return (0, all.as_ptr() as usize);
        }
        let (block, used) = match state.filling {
            Some((block, used)) if used + count <= BLOCK => (block, used),
            before => {
                let block = self.map(&mut state);
                if let Some((full, _)) = before
                    && !state.in_use.contains_key(&full)
                {
                    self.retire(&mut state, full);
                }
                (block, 0)
            }
        };
        state.filling = Some((block, used + count));
        *state.in_use.entry(block).or_insert(0) += count;
        (block, block + used * size_of::<T>())
    }

    /// Gives structs back.
    fn give_back(&self, block: usize, count: usize) {
        if block == 0 {
            return;
        }
        let mut state = self.state.lock();
        let Some(left) = state.in_use.get_mut(&block) else { return };
        *left -= count;
        if *left == 0 {
            state.in_use.remove(&block);
            if state.filling.is_none_or(|(filling, _)| filling != block) {
                self.retire(&mut state, block);
            }
        }
    }

    /// A block for new calls.
    fn map(&self, state: &mut State) -> usize {
        let again = if state.ended.len() >= MAX_ENDED { state.ended.pop_front() } else { None };
        let (at, fixed) = again.map_or((ptr::null_mut(), 0), |block| (block as *mut _, libc::MAP_FIXED));
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed);
        // SAFETY: new memory, or memory of this type in which every call has ended.
        let mapped = unsafe { libc::mmap(at, Self::BYTES, prot, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Box::leak(vec![self.long_over; BLOCK].into_boxed_slice()).as_ptr() as usize;
        }
        mapped as usize
    }

    /// Puts structs that are long over in the place of a block's.
    fn retire(&self, state: &mut State, block: usize) {
        if state.tombstones.is_none() {
            state.tombstones = self.tombstones().ok();
        }
        // Without a file the block stays as it is: its calls are over all the same.
        let Some(file) = &state.tombstones else { return };
        if !block.is_multiple_of(4096) {
            return;
        }
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the block is this type's own, and no call in it is open; what a plugin may still read there is replaced
        // by structs of the same layout.
        let mapped =
            unsafe { libc::mmap(block as *mut _, Self::BYTES, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        if mapped != libc::MAP_FAILED {
            state.ended.push_back(block);
        }
    }

    fn tombstones(&self) -> std::io::Result<std::fs::File> {
        let mut file = std::fs::File::from(memfd_create("coda-ended-calls", MemfdFlags::CLOEXEC)?);
        let value: *const T = &self.long_over;
        // SAFETY: the bytes of a plain struct; each field of the lent structs is a whole number of words without padding.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size_of::<T>()) };
        file.write_all(&bytes.repeat(BLOCK))?;
        Ok(file)
    }
}

impl<T: Copy> Drop for Lent<T> {
    fn drop(&mut self) {
        for i in 0..self.count {
            // SAFETY: the structs are this value's own until they are given back.
            unsafe {
                let cell = self.first.add(i);
                cell.write((self.cells.over)(&*cell));
            }
        }
        self.cells.give_back(self.block, self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_not_lent_again_and_says_afterwards_that_its_call_is_over() {
        static CELLS: Cells<[usize; 7]> = Cells::new([0; 7], |cell| [1, cell[1], 1, 1, 1, 1, 1]);
        let mut seen = std::collections::HashSet::new();
        let kept = CELLS.lend(&[[2; 7]]);
        for n in 0..5 * BLOCK {
            let lent = CELLS.lend(&[[n; 7]; 3]);
            assert_eq!(lent.len(), 3);
            for i in 0..3 {
                let cell = lent.as_ptr().wrapping_add(i);
                // SAFETY: lent until the end of this turn.
                assert_eq!(unsafe { *cell }, [n; 7]);
                assert!(seen.insert(cell as usize), "an address was lent twice");
            }
        }
        for cell in &seen {
            // SAFETY: what was lent stays readable.
            let first = unsafe { (*(*cell as *const [usize; 7]))[0] };
            assert!(first <= 1, "{first}");
        }
        // SAFETY: it is still lent.
        assert_eq!(unsafe { *kept.as_ptr() }, [2; 7], "a call that goes on keeps its struct");
        let many = CELLS.lend(&vec![[7; 7]; BLOCK + 1]);
        assert_eq!(many.len(), BLOCK + 1);
    }

    #[test]
    fn ended_calls_take_no_memory_of_their_own() {
        static CELLS: Cells<[usize; 8]> = Cells::new([0; 8], |cell| *cell);
        (0..100 * BLOCK).for_each(|n| drop(CELLS.lend(&[[n; 8]])));
        let state = CELLS.state.lock();
        assert_eq!((state.ended.len(), state.in_use.len()), (99, 0), "all but the one that is being filled");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for block in &state.ended {
            let line = maps.lines().find(|line| line.starts_with(&format!("{block:x}-"))).unwrap();
            assert!(line.contains("r--s") && line.contains("coda-ended-calls"), "{line}");
        }
    }
}
