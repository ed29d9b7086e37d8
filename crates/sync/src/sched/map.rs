//! A concurrent map whose locks the scheduler sees.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::ops::Deref;

use super::locks::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Fewer than the real one has, so that a thread that holds one stands in the way of more.
const SHARDS: usize = 8;

type Shard<K, V, S> = HashMap<K, V, S>;

/// As `dashmap`'s, as far as it is used; in the same order on every machine.
pub struct DashMap<K, V, S> {
    shards: Vec<RwLock<Shard<K, V, S>>>,
    hasher: S,
}

impl<K: Eq + Hash + Clone, V, S: BuildHasher + Clone + Default> Default for DashMap<K, V, S> {
    fn default() -> Self {
        Self::with_hasher(S::default())
    }
}

impl<K: Eq + Hash + Clone, V, S: BuildHasher + Clone> DashMap<K, V, S> {
    /// An empty one.
    pub fn with_hasher(hasher: S) -> Self {
        Self::with_capacity_and_hasher(0, hasher)
    }

    /// One that need not grow soon.
    pub fn with_capacity_and_hasher(capacity: usize, hasher: S) -> Self {
        let shard = |_| {
            RwLock::new(HashMap::with_capacity_and_hasher(
                capacity / SHARDS,
                hasher.clone(),
            ))
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher,
        }
    }

    fn shard(&self, key: &K) -> &RwLock<Shard<K, V, S>> {
        &self.shards[(self.hasher.hash_one(key) >> 32) as usize % SHARDS]
    }

    /// What belongs to a key; its shard is locked as long as the answer lives.
    pub fn get(&self, key: &K) -> Option<Ref<'_, K, V, S>> {
        let shard = self.shard(key).read();
        let key = key.clone();
        shard.contains_key(&key).then(|| Ref { shard, key })
    }

    /// Whether there is something.
    pub fn contains_key(&self, key: &K) -> bool {
        self.shard(key).read().contains_key(key)
    }

    /// Puts it there; what was before.
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        self.shard(&key).write().insert(key, value)
    }

    /// Takes it away.
    pub fn remove(&self, key: &K) -> Option<(K, V)> {
        self.shard(key).write().remove_entry(key)
    }

    /// Takes it away if it is so.
    pub fn remove_if(&self, key: &K, is_so: impl FnOnce(&K, &V) -> bool) -> Option<(K, V)> {
        let mut shard = self.shard(key).write();
        let so = shard.get(key).is_some_and(|value| is_so(key, value));
        if so { shard.remove_entry(key) } else { None }
    }

    /// The place of a key; its shard is locked as long as the answer lives.
    pub fn entry(&self, key: K) -> Entry<'_, K, V, S> {
        let place = Place {
            shard: self.shard(&key).write(),
            key,
        };
        if place.shard.contains_key(&place.key) {
            Entry::Occupied(Occupied(place))
        } else {
            Entry::Vacant(Vacant(place))
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, each with its shard locked while it is looked at.
    pub fn iter(&self) -> impl Iterator<Item = Ref<'_, K, V, S>> {
        let keys =
            |shard: &RwLock<Shard<K, V, S>>| shard.read().keys().cloned().collect::<Vec<_>>();
        let all = self.shards.iter().flat_map(keys);
        all.filter_map(|key| self.get(&key))
    }

    /// Keeps what `keep` says.
    pub fn retain(&self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        for shard in &self.shards {
            shard.write().retain(&mut keep);
        }
    }
}

/// One found.
pub struct Ref<'a, K, V, S> {
    shard: RwLockReadGuard<'a, Shard<K, V, S>>,
    key: K,
}

impl<K: Eq + Hash, V, S: BuildHasher> Ref<'_, K, V, S> {
    /// What belongs to the key.
    pub fn value(&self) -> &V {
        self.shard.get(&self.key).expect("found, and locked since")
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Deref for Ref<'_, K, V, S> {
    type Target = V;
    fn deref(&self) -> &V {
        self.value()
    }
}

/// The place of a key.
pub enum Entry<'a, K, V, S> {
    /// With something there.
    Occupied(Occupied<'a, K, V, S>),
    /// With nothing.
    Vacant(Vacant<'a, K, V, S>),
}

struct Place<'a, K, V, S> {
    shard: RwLockWriteGuard<'a, Shard<K, V, S>>,
    key: K,
}

/// See [`Entry`].
pub struct Occupied<'a, K, V, S>(Place<'a, K, V, S>);

/// See [`Entry`].
pub struct Vacant<'a, K, V, S>(Place<'a, K, V, S>);

impl<'a, K: Eq + Hash + Clone, V, S: BuildHasher> Entry<'a, K, V, S> {
    /// What is there, or this.
    pub fn or_insert(self, value: V) -> RefMut<'a, K, V, S> {
        match self {
            Self::Occupied(Occupied(place)) => RefMut(place),
            Self::Vacant(vacant) => vacant.insert(value),
        }
    }

    /// What is there, or what is there by default.
    pub fn or_default(self) -> RefMut<'a, K, V, S>
    where
        V: Default,
    {
        self.or_insert(V::default())
    }
}

impl<K: Eq + Hash + Clone, V, S: BuildHasher> Occupied<'_, K, V, S> {
    /// What is there.
    pub fn get(&self) -> &V {
        let Place { shard, key } = &self.0;
        shard.get(key).expect("found, and locked since")
    }

    /// What is there.
    pub fn get_mut(&mut self) -> &mut V {
        let Place { shard, key } = &mut self.0;
        shard.get_mut(key).expect("found, and locked since")
    }

    /// Something else from here on; what was before.
    pub fn insert(&mut self, value: V) -> V {
        std::mem::replace(self.get_mut(), value)
    }

    /// Nothing from here on; what was before.
    pub fn remove(mut self) -> V {
        let Place { shard, key } = &mut self.0;
        shard.remove(key).expect("found, and locked since")
    }
}

impl<'a, K: Eq + Hash + Clone, V, S: BuildHasher> Vacant<'a, K, V, S> {
    /// Puts it there.
    pub fn insert(mut self, value: V) -> RefMut<'a, K, V, S> {
        let Place { shard, key } = &mut self.0;
        shard.insert(key.clone(), value);
        RefMut(self.0)
    }
}

/// One that can be changed.
pub struct RefMut<'a, K, V, S>(Place<'a, K, V, S>);

impl<K: Eq + Hash, V, S: BuildHasher> Deref for RefMut<'_, K, V, S> {
    type Target = V;
    fn deref(&self) -> &V {
        self.0
            .shard
            .get(&self.0.key)
            .expect("put there, and locked since")
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> std::ops::DerefMut for RefMut<'_, K, V, S> {
    fn deref_mut(&mut self) -> &mut V {
        let Place { shard, key } = &mut self.0;
        shard.get_mut(key).expect("put there, and locked since")
    }
}
