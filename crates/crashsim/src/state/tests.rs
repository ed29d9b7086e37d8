use super::*;
use crate::medium::Rules;
use crate::pages::Pages;
use std::sync::Arc;

/// Words 1, 2 and 3 of a line, stored by events 10, 20 and 30.
fn granule(nt: bool) -> Granule {
    let mut content = Content::new(Pages::new(64), Rules::MEMORY);
    for (word, event) in [(1, 10), (2, 20), (3, 30)] {
        let bytes: Arc<[u8]> = [word as u8; 8].into();
        content.store(event, word * 8, &bytes, nt);
    }
    Granule::all(&content, Medium::Pmem).next().unwrap()
}

/// The words that have arrived, and the events that have not.
fn outcome(granule: &Granule, arrived: &Arrived<'_>) -> (Vec<u8>, Vec<usize>) {
    let mut pages = Pages::new(64);
    let mut lost = Vec::new();
    let mut writer = pages.writer();
    granule.write(arrived, &mut writer, |event| lost.push(event));
    writer.finish();
    let words = pages
        .to_vec()
        .chunks(8)
        .map(|word| word[7])
        .filter(|byte| *byte != 0)
        .collect();
    (words, lost)
}

#[test]
fn an_ordered_granule_is_cut_before_the_first_that_is_missing() {
    let line = granule(false);
    assert_eq!(line.ways(), Some(4));
    let keeping = |keep: fn(usize) -> bool| outcome(&line, &line.keeping(keep));
    assert_eq!(keeping(|event| event != 20), (vec![1], vec![20, 30]));
    assert_eq!(keeping(|event| event <= 20), (vec![1, 2], vec![30]));
    assert_eq!(keeping(|event| event > 10), (vec![], vec![10, 20, 30]));
    assert_eq!(keeping(|_| true), (vec![1, 2, 3], vec![]));
}

#[test]
fn one_event_brings_those_before_it_in_its_line_along() {
    let line = granule(false);
    assert_eq!(outcome(&line, &line.with_only(20)), (vec![1, 2], vec![30]));
    assert_eq!(
        outcome(&line, &line.with_only(25)),
        (vec![], vec![10, 20, 30])
    );
}

#[test]
fn a_loose_granule_has_exactly_what_is_selected() {
    let line = granule(true);
    assert_eq!(line.ways(), Some(8));
    assert_eq!(outcome(&line, &line.with_only(20)), (vec![2], vec![10, 30]));
    assert_eq!(
        outcome(&line, &line.keeping(|event| event != 20)),
        (vec![1, 3], vec![20])
    );
}

#[test]
fn the_ways_are_all_different() {
    for nt in [false, true] {
        let line = granule(nt);
        let ways = line.ways().unwrap();
        let mut outcomes: Vec<_> = (0..ways).map(|n| outcome(&line, &line.way(n))).collect();
        outcomes.sort();
        outcomes.dedup();
        assert_eq!(outcomes.len() as u64, ways);
    }
}

#[test]
fn a_torn_granule_is_often_torn() {
    for nt in [false, true] {
        let line = granule(nt);
        let torn = |seed| !matches!(outcome(&line, &line.random(seed, true)).0.len(), 0 | 3);
        assert!((0..100).filter(|seed| torn(*seed)).count() > 30);
    }
}
