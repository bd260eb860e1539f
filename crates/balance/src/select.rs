//! The choice of resources for a target load: no policy in Lua is asked here.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::resource::Resource;
use crate::setting::Selector;

/// The part of a target by which one resource may miss it to be taken alone.
const CLOSE: f64 = 0.2;
/// The error of rounding in loads that fit exactly.
const ROUNDING: f64 = 1e-9;

/// Returns the positions of the resources that are to be moved so that their loads come to an amount, at most `most` of
/// them. Except by [`Selector::Fewest`], the amount is not exceeded.
pub fn select(selector: Selector, resources: &[&Resource], amount: f64, most: usize) -> Vec<usize> {
    let by_load = |a: &usize, b: &usize| descending(resources[*a].load, resources[*b].load).then(a.cmp(b));
    let mut order: Vec<usize> = (0..resources.len()).filter(|at| resources[*at].load > 0.0).collect();
    let mut left = amount * (1.0 + ROUNDING);
    // Where there are many targets, most resources fit into none of them, and need no place in an order.
    let fits = |at: &usize| resources[*at].load <= left;
    match selector {
        Selector::Biggest => {
            order.retain(fits);
            order.sort_unstable_by(by_load);
        }
        Selector::Fewest => {
            let missed = |at: &usize| (resources[*at].load - amount).abs();
            let closest = order.iter().min_by(|a, b| missed(a).total_cmp(&missed(b)).then(a.cmp(b)));
            if let Some(closest) = closest.filter(|at| missed(at) <= CLOSE * amount && most > 0) {
                return vec![*closest];
            }
            order.retain(fits);
            order.sort_unstable_by(by_load);
        }
        Selector::Locality => {
            let mut directories: HashMap<&str, f64> = HashMap::new();
            for at in &order {
                *directories.entry(directory(resources[*at])).or_default() += resources[*at].load;
            }
            // Those that fit as a whole come first, and the rest is filled up from as few of the others as possible.
            let rank = |at: &usize| {
                let name = directory(resources[*at]);
                let load = directories.get(name).copied().unwrap_or_default();
                (load > left, load, name)
            };
            order.sort_by(|a, b| {
                let ((a_over, a_load, a_name), (b_over, b_load, b_name)) = (rank(a), rank(b));
                let directories =
                    a_over.cmp(&b_over).then(descending(a_load, b_load)).then(a_name.cmp(b_name));
                directories.then_with(|| by_load(a, b))
            });
        }
    }
    let mut chosen = Vec::new();
    for at in order {
        if chosen.len() == most {
            break;
        }
        if resources[at].load <= left {
            left -= resources[at].load;
            chosen.push(at);
        }
    }
    chosen
}

fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

/// Returns what resources that belong together have in common: the path above the last slash.
fn directory(resource: &Resource) -> &str {
    resource.id.name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(selector: Selector, amount: f64, most: usize, loads: &[(&str, f64)]) -> Vec<String> {
        let resources: Vec<Resource> =
            loads.iter().map(|(name, load)| Resource { id: name.parse().unwrap(), load: *load }).collect();
        let resources: Vec<&Resource> = resources.iter().collect();
        let chosen = select(selector, &resources, amount, most);
        chosen.into_iter().map(|at| resources[at].id.name.to_string()).collect()
    }

    #[test]
    fn each_selector_chooses_as_it_says() {
        let loads = [
            ("subtree:/a/1", 4.0),
            ("subtree:/a/2", 3.0),
            ("subtree:/b/1", 5.0),
            ("subtree:/b/2", 9.0),
            ("subtree:/c", 0.0),
        ];
        assert_eq!(names(Selector::Biggest, 8.0, 9, &loads), ["/b/1", "/a/2"]);
        assert_eq!(names(Selector::Fewest, 8.0, 9, &loads), ["/b/2"]);
        assert_eq!(
            names(Selector::Fewest, 7.2, 9, &loads),
            ["/b/1"],
            "nothing is close, and the biggest that fits is"
        );
        assert_eq!(names(Selector::Locality, 8.0, 9, &loads), ["/a/1", "/a/2"]);
        assert_eq!(names(Selector::Biggest, 100.0, 2, &loads), ["/b/2", "/b/1"]);
        assert!(names(Selector::Biggest, 1.0, 9, &loads).is_empty());
        assert!(names(Selector::Fewest, 9.0, 0, &loads).is_empty());
    }

    #[test]
    fn half_of_two_equal_ones_is_one() {
        let loads = [("sequencer:a", 0.1), ("sequencer:b", 0.1)];
        assert_eq!(names(Selector::Biggest, (0.1 + 0.1) / 2.0, 9, &loads), ["a"]);
    }
}
