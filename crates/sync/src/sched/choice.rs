//! Which thread goes on.

/// Numbers that only depend on the seed (SplitMix64).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }
}

/// A number that looks like any other and belongs to this one.
pub(crate) fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// How threads are chosen. None finds every bug soon: random walks find what needs many switches,
/// priorities what needs few of them at the right places, delays what needs a thread to stay behind.
enum Policy {
    /// At each point one in so many times another thread goes on, any of them.
    Walk(u64),
    /// As a walk; besides, one in so many times a thread is held up while others do much.
    Delays(u64),
    /// The thread of the highest priority goes on; at some points, known in advance, it becomes the
    /// lowest (Burckhardt et al., ASPLOS 2010).
    Priorities(Vec<u64>),
}

/// One switch in so many points when delays matter more.
const STROLL: u64 = 24;
/// The longest delay.
const DELAY: u64 = 4096;

/// Points within which priorities change.
const HORIZONS: [u64; 4] = [300, 1500, 6000, 20_000];

pub(crate) struct Choice {
    rng: Rng,
    policy: Policy,
    /// By thread; higher ones go first.
    priorities: Vec<u64>,
    lowest: u64,
    /// Choices so far between more than one.
    step: u64,
}

impl Choice {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let policy = match rng.below(4) {
            0 => {
                let horizon = HORIZONS[rng.below(4) as usize];
                let changes = 1 + rng.below(8);
                let mut at: Vec<u64> = (0..changes).map(|_| rng.below(horizon)).collect();
                at.sort_unstable();
                Policy::Priorities(at)
            }
            1 => Policy::Delays(30 << (2 * rng.below(3))),
            _ => Policy::Walk(2 << (2 * rng.below(4))),
        };
        Self {
            rng,
            policy,
            priorities: Vec::new(),
            lowest: u64::MAX / 4,
            step: 0,
        }
    }

    /// There is one thread more.
    pub(crate) fn add(&mut self) {
        let priority = u64::MAX / 2 + self.rng.below(u64::MAX / 4);
        self.priorities.push(priority);
    }

    /// A thread says that it has nothing better to do than to let others go on.
    pub(crate) fn yields(&mut self, thread: usize) {
        self.lowest -= 1;
        self.priorities[thread] = self.lowest;
    }

    /// One of those that can go on, which are not none. `now`: the one that had its turn, if it is
    /// among them and does not want to wait.
    pub(crate) fn next(&mut self, ready: &[usize], now: Option<usize>) -> usize {
        if let [only] = ready {
            return *only;
        }
        self.step += 1;
        match &mut self.policy {
            Policy::Walk(_) | Policy::Delays(_) => {
                let odds = if let Policy::Walk(odds) = &self.policy {
                    *odds
                } else {
                    STROLL
                };
                if let Some(now) = now
                    && self.rng.below(odds) != 0
                {
                    return now;
                }
                ready[self.rng.below(ready.len() as u64) as usize]
            }
            Policy::Priorities(changes) => {
                let due = changes.iter().take_while(|at| **at <= self.step).count();
                changes.drain(..due);
                if due > 0
                    && let Some(now) = now
                {
                    self.yields(now);
                }
                let first = ready.iter().max_by_key(|t| self.priorities[**t]);
                *first.unwrap_or(&ready[0])
            }
        }
    }

    /// For how many points the thread whose turn it is is held up, if at all.
    pub(crate) fn delay(&mut self) -> Option<u64> {
        let Policy::Delays(odds) = self.policy else {
            return None;
        };
        (self.rng.below(odds) == 0).then(|| {
            let longest = DELAY >> (2 * self.rng.below(4));
            1 + self.rng.below(longest)
        })
    }

    /// One of several that wait for the same.
    pub(crate) fn one_of(&mut self, waiting: &[usize]) -> usize {
        waiting[self.rng.below(waiting.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_alone_decides() {
        let choices = |seed| {
            let mut c = Choice::new(seed);
            (0..4).for_each(|_| c.add());
            let mut now = 0;
            let next = |_| {
                now = c.next(&[0, 1, 2, 3], Some(now));
                now
            };
            (0..2000).map(next).collect::<Vec<_>>()
        };
        assert_eq!(choices(7), choices(7));
        let different: std::collections::BTreeSet<_> = (0..32).map(choices).collect();
        assert!(different.len() > 25, "{}", different.len());
    }

    #[test]
    fn who_yields_comes_last() {
        let mut c = Choice::new(0);
        c.policy = Policy::Priorities(Vec::new());
        (0..3).for_each(|_| c.add());
        for _ in 0..9 {
            let first = c.next(&[0, 1, 2], None);
            c.yields(first);
            assert_ne!(c.next(&[0, 1, 2], None), first);
        }
    }
}
