//! Compiled signatures of one function, the least recently used of which are dropped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Number of signatures that a function keeps compiled by default.
pub(crate) const DEFAULT_CAPACITY: usize = 256;

/// Entries of one function, at most `capacity` of them.
pub(crate) struct Entries<E> {
    slots: RwLock<Vec<Slot<E>>>,
    /// Number of the latest use. Two threads may take the same one, which makes both equally
    /// recent.
    clock: AtomicU64,
    capacity: usize,
}

struct Slot<E> {
    entry: Arc<E>,
    used: AtomicU64,
}

impl<E> Default for Entries<E> {
    fn default() -> Self {
        Entries { slots: RwLock::default(), clock: AtomicU64::new(0), capacity: DEFAULT_CAPACITY }
    }
}

impl<E> Entries<E> {
    /// Sets how many entries are kept, at least one.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
    }

    /// No entries, and the same capacity, for another kind of entry.
    pub(crate) fn cleared<N>(&self) -> Entries<N> {
        Entries { capacity: self.capacity, ..Entries::default() }
    }

    /// The entry that `fits`, which counts as used now.
    #[inline]
    pub(crate) fn find(&self, fits: impl Fn(&E) -> bool) -> Option<Arc<E>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.iter().find(|slot| fits(&slot.entry))?;
        slot.used.store(self.now(), Ordering::Relaxed);
        Some(slot.entry.clone())
    }

    /// Adds an entry and returns those that had to go for it.
    pub(crate) fn insert(&self, entry: Arc<E>) -> Vec<Arc<E>> {
        let used = AtomicU64::new(self.now());
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let mut evicted = Vec::new();
        while slots.len() >= self.capacity {
            let oldest = slots.iter().enumerate();
            let oldest = oldest.min_by_key(|(_, slot)| slot.used.load(Ordering::Relaxed));
            let (index, _) = oldest.expect("the capacity is not 0");
            evicted.push(slots.remove(index).entry);
        }
        slots.push(Slot { entry, used });
        evicted
    }

    #[inline]
    fn now(&self) -> u64 {
        // A plain load and store: an atomic addition would cost more than the order is worth.
        let now = self.clock.load(Ordering::Relaxed) + 1;
        self.clock.store(now, Ordering::Relaxed);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entry_goes() {
        let mut entries = Entries::default();
        entries.set_capacity(3);
        for i in 0..3 {
            assert!(entries.insert(Arc::new(i)).is_empty());
        }
        assert_eq!(entries.find(|i| *i == 0).as_deref(), Some(&0));
        assert_eq!(entries.insert(Arc::new(3)), [Arc::new(1)]);
        assert_eq!(entries.find(|i| *i == 1), None);
        assert_eq!(entries.insert(Arc::new(4)), [Arc::new(2)]);
        assert_eq!(entries.find(|i| *i == 0).as_deref(), Some(&0));
        entries.set_capacity(0);
        assert_eq!(entries.insert(Arc::new(5)).len(), 3);
        assert_eq!(entries.find(|i| *i == 5).as_deref(), Some(&5));
    }
}
