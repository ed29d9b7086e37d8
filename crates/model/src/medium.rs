//! The medium of `docs/internals/crash-consistency.md`, in abstract cells.
//!
//! A cell is what a protocol step stores as one thing. An *atomic* cell is an aligned 8-byte word:
//! after a power failure it holds its durable value or any value stored since. A *wide* cell is
//! anything larger (a header, a body, a page, a block): it may also be [`TORN`], which no checksum
//! accepts. Stores to one cell reach the medium in order, stores to different cells in any order.
//! A fence makes durable what the fencing thread stored; what it stored over is then gone.
//!
//! The death of the daemon is the other kind of crash: nothing is lost, and nothing becomes durable
//! either. What the next daemon reads may still be in flight.

use std::hash::{Hash, Hasher};

/// The value of a wide cell that was being written when power failed.
pub const TORN: u16 = 0xffff;

/// Stores that can be in flight in one cell at once.
const DEEP: usize = 3;

/// One cell: its durable value, then the values in flight, oldest first, and the owner of each
/// (0: none).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Cell {
    value: [u16; 1 + DEEP],
    owner: [u8; DEEP],
}

impl Cell {
    fn new(value: u16) -> Cell {
        Cell {
            value: [value, 0, 0, 0],
            owner: [0; DEEP],
        }
    }
    fn flying(&self) -> usize {
        self.owner.iter().filter(|&&owner| owner != 0).count()
    }
    fn visible(&self) -> u16 {
        self.value[self.flying()]
    }
    /// The oldest `n` stores in flight have become durable.
    fn settle(&mut self, n: usize) {
        let (value, owner) = (self.value, self.owner);
        *self = Cell::new(value[n]);
        for i in n..DEEP {
            if owner[i] != 0 {
                self.value[1 + i - n] = value[1 + i];
                self.owner[i - n] = owner[i];
            }
        }
    }
}

impl Hash for Cell {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let [durable, a, b, c] = self.value.map(u64::from);
        let [x, y, z] = self.owner.map(u64::from);
        hasher.write_u64(durable | x << 16 | y << 24 | z << 32);
        if x != 0 {
            hasher.write_u64(a | b << 16 | c << 32);
        }
    }
}

/// A fixed set of cells, each either atomic or wide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Medium<const N: usize> {
    cell: [Cell; N],
}

impl<const N: usize> Medium<N> {
    /// All cells zero and durable.
    pub fn zeroed() -> Self {
        Medium {
            cell: [Cell::default(); N],
        }
    }

    /// What a load returns: the newest store, durable or not.
    pub fn load(&self, at: usize) -> u16 {
        self.cell[at].visible()
    }

    /// Whether nothing stored in this cell is in flight.
    pub fn settled(&self, at: usize) -> bool {
        self.cell[at].flying() == 0
    }

    /// Writes as mkfs does: durable at once.
    pub fn format(&mut self, at: usize, value: u16) {
        self.cell[at] = Cell::new(value);
    }

    /// A store by `owner`; in flight until a fence of the same owner.
    pub fn store(&mut self, at: usize, value: u16, owner: u8) {
        let cell = &mut self.cell[at];
        let flying = cell.flying();
        let again = flying == 0 || cell.owner[flying - 1] == owner;
        if again && cell.visible() == value {
            return;
        }
        assert!(
            flying < DEEP,
            "cell {at} has too many stores in flight: {cell:?}"
        );
        cell.value[1 + flying] = value;
        cell.owner[flying] = owner;
    }

    /// Whether as many stores to this cell are in flight as the model can tell apart.
    pub fn is_full(&self, at: usize) -> bool {
        self.cell[at].flying() == DEEP
    }

    /// Flush and fence of everything `owner` stored.
    pub fn fence(&mut self, owner: u8) {
        for cell in &mut self.cell {
            if let Some(last) = cell.owner.iter().rposition(|&by| by == owner) {
                cell.settle(last + 1);
            }
        }
    }

    /// A drain that covers the stores of every owner in `range`.
    pub fn drain(&mut self, range: std::ops::Range<usize>) {
        for cell in &mut self.cell[range] {
            cell.settle(cell.flying());
        }
    }

    /// Every medium a power failure may leave behind. `wide` tells which cells can tear.
    pub fn after_power_loss(&self, wide: impl Fn(usize) -> bool, mut each: impl FnMut(Self)) {
        let options = self.options(wide);
        let mut image = self.settled_only();
        let count: usize = options.iter().map(|(_, values)| values.len()).product();
        assert!(
            count <= 1 << 17,
            "too many stores in flight at once: {options:?}"
        );
        for mut pick in 0..count {
            for (at, values) in &options {
                image.cell[*at] = Cell::new(values[pick % values.len()]);
                pick /= values.len();
            }
            each(image.clone());
        }
    }

    /// One of them, drawn at random: `draw(n)` is below `n`.
    pub fn one_after_power_loss(
        &self,
        wide: impl Fn(usize) -> bool,
        draw: &mut dyn FnMut(usize) -> usize,
    ) -> Self {
        let mut image = self.settled_only();
        for (at, values) in self.options(wide) {
            image.cell[at] = Cell::new(values[draw(values.len())]);
        }
        image
    }

    /// What each cell with stores in flight may hold afterwards.
    fn options(&self, wide: impl Fn(usize) -> bool) -> Vec<(usize, Vec<u16>)> {
        let flying = self
            .cell
            .iter()
            .enumerate()
            .filter(|(_, cell)| cell.flying() > 0);
        flying
            .map(|(at, cell)| {
                let mut values = cell.value[..=cell.flying()].to_vec();
                if wide(at) {
                    values.push(TORN);
                }
                values.sort_unstable();
                values.dedup();
                (at, values)
            })
            .collect()
    }

    fn settled_only(&self) -> Self {
        let mut image = self.clone();
        for cell in &mut image.cell {
            *cell = Cell::new(cell.value[0]);
        }
        image
    }

    /// The cells with stores in flight.
    pub fn in_flight(&self) -> impl Iterator<Item = usize> + '_ {
        (0..N).filter(|&at| self.cell[at].flying() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cell 0 is a word, cell 1 is wide.
    fn images(m: &Medium<2>) -> Vec<[u16; 2]> {
        let mut images = Vec::new();
        m.after_power_loss(
            |at| at == 1,
            |image| images.push([image.load(0), image.load(1)]),
        );
        images.sort_unstable();
        images
    }

    #[test]
    fn what_is_not_fenced_may_be_there_or_not_or_torn() {
        let mut m = Medium::<2>::zeroed();
        m.store(0, 7, 1);
        m.store(1, 8, 1);
        assert_eq!(m.load(0), 7);
        let want = [[0, 0], [0, 8], [0, TORN], [7, 0], [7, 8], [7, TORN]];
        assert_eq!(images(&m), want);
    }

    #[test]
    fn a_fence_settles_what_its_thread_stored_and_what_that_lies_on() {
        let mut m = Medium::<2>::zeroed();
        m.store(0, 1, 1);
        m.store(0, 2, 2);
        m.store(1, 3, 3);
        m.fence(1);
        assert_eq!(
            images(&m),
            [[1, 0], [1, 3], [1, TORN], [2, 0], [2, 3], [2, TORN]]
        );
        m.fence(2);
        assert_eq!(images(&m), [[2, 0], [2, 3], [2, TORN]]);
        m.drain(0..2);
        assert_eq!(images(&m), [[2, 3]]);
    }

    #[test]
    fn a_random_image_is_one_of_them() {
        let mut m = Medium::<2>::zeroed();
        m.store(0, 7, 1);
        m.store(1, 8, 2);
        for n in 0..9 {
            let image = m.one_after_power_loss(|at| at == 1, &mut |below| n % below);
            assert!(images(&m).contains(&[image.load(0), image.load(1)]));
            assert!(image.settled(0) && image.settled(1));
        }
    }
}
