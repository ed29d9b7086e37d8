//! Reads decisions out of a fuzzer's input.

/// What is left of an input. Behind its end there are zeros, so that every input means something.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The next `n` bytes, or as many as are left.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(n.min(self.0.len()));
        self.0 = tail;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let got = self.bytes(N);
        out[..got.len()].copy_from_slice(got);
        out
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A decision.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// An index below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n <= 256 {
            usize::from(self.u8()) % n
        } else {
            usize::from(self.u16()) % n
        }
    }

    /// A number: small, any, or close to a power of two, where sums overflow.
    pub fn number(&mut self) -> u64 {
        match self.u8() {
            0..=63 => u64::from(self.u8()),
            64..=127 => u64::from(self.u16()),
            128..=191 => {
                let power = 1u64 << (self.u8() % 64);
                let near = i64::from(self.u8().cast_signed());
                power.wrapping_add_signed(near)
            }
            192..=223 => u64::from(self.u32()),
            _ => self.u64(),
        }
    }
}

/// Overlays `target` with pieces of the input, at most `most` of them, each up to 32 bytes.
pub fn overlay(input: &mut Input<'_>, target: &mut [u8], most: usize) {
    for _ in 0..most {
        if input.is_empty() {
            return;
        }
        let at = usize::from(input.u16()) % target.len();
        let n = usize::from(input.u8() % 32) + 1;
        let piece = input.bytes(n.min(target.len() - at));
        target[at..at + piece.len()].copy_from_slice(piece);
    }
}
