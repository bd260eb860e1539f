//! The variables that the functions of a text share, and what they do with them.
//!
//! A class whose functions change nothing that outlives a call may run its text once for many calls. Whether they do is told in two
//! steps: here by the text, and by the values that are there once the text has run (`vm/keep.rs`). Where a variable is declared
//! must be known exactly. Which of several variables of one name is meant need not be: what is done with one is taken to be done
//! with all of them.

use std::collections::{HashMap, HashSet};

/// The names of variables with which functions do what might change them, or the tables in them. Those that are a function's own, in
/// that function itself, are not among them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedNames {
    assigned: HashSet<Box<[u8]>>,
    whole: HashSet<Box<[u8]>>,
}

impl SharedNames {
    /// Returns whether a function assigns to a variable of this name that belongs to a function around it.
    pub fn is_assigned(&self, name: &[u8]) -> bool {
        self.assigned.contains(name)
    }

    /// Returns whether a function does something with the value of such a variable, or of a global one, other than looking up a field
    /// in it.
    pub fn is_used_whole(&self, name: &[u8]) -> bool {
        self.whole.contains(name)
    }
}

/// The variables in scope while a text is parsed.
pub(super) struct Scopes<'a> {
    /// The local variables in scope, those of the text itself first.
    declared: Vec<&'a [u8]>,
    /// The number of them before each function around, the outermost first. There is none around the text itself.
    functions: Vec<usize>,
    /// For each name, how many functions are around each variable in scope that has it, the outermost first.
    depths: HashMap<&'a [u8], Vec<usize>>,
    assigned: HashSet<&'a [u8]>,
    whole: HashSet<&'a [u8]>,
    /// False once the text may change global variables while it does not run itself.
    is_settled: bool,
}

impl<'a> Scopes<'a> {
    pub fn new() -> Self {
        Self {
            declared: Vec::new(),
            functions: Vec::new(),
            depths: HashMap::new(),
            assigned: HashSet::new(),
            whole: HashSet::new(),
            is_settled: true,
        }
    }

    /// Begins the body of a function.
    pub fn enter(&mut self) {
        self.functions.push(self.declared.len());
    }

    /// Ends the body of a function.
    pub fn leave(&mut self) {
        if let Some(place) = self.functions.pop() {
            self.close(place);
        }
    }

    /// Returns the place to which [`Scopes::close`] goes back.
    pub fn open(&self) -> usize {
        self.declared.len()
    }

    /// Ends the scope of the variables that were declared since a place.
    pub fn close(&mut self, place: usize) {
        for name in self.declared.drain(place..) {
            if let Some(depths) = self.depths.get_mut(name) {
                depths.pop();
            }
        }
    }

    /// Declares a local variable.
    pub fn declare(&mut self, name: &'a [u8]) {
        self.watch(name);
        self.declared.push(name);
        self.depths.entry(name).or_default().push(self.functions.len());
    }

    /// Notes that a variable is used: as a whole, or for a field of its value.
    pub fn mention(&mut self, name: &'a [u8], whole: bool) {
        self.watch(name);
        if whole && self.is_shared(name) {
            self.whole.insert(name);
        }
    }

    /// Notes that a variable is assigned to: itself, or a field of its value.
    pub fn assign(&mut self, name: &'a [u8], field: bool) {
        self.watch(name);
        if !self.is_shared(name) {
            return;
        }
        if field {
            self.whole.insert(name);
        } else if self.depths.get(name).is_some_and(|depths| !depths.is_empty()) {
            self.assigned.insert(name);
        } else {
            self.is_settled = false;
        }
    }

    /// Looks out for the names by which global variables are reached in other ways.
    fn watch(&mut self, name: &[u8]) {
        if name == b"_ENV" || name == b"_G" && !self.functions.is_empty() {
            self.is_settled = false;
        }
    }

    /// Returns whether a variable outlives the function that is parsed. The text itself runs to its end before any method does.
    fn is_shared(&self, name: &[u8]) -> bool {
        let innermost = self.depths.get(name).and_then(|depths| depths.last());
        !self.functions.is_empty() && innermost != Some(&self.functions.len())
    }

    /// Returns what is known at the end; `None` if functions may change global variables.
    pub fn shared(&self) -> Option<SharedNames> {
        let owned = |names: &HashSet<&[u8]>| names.iter().map(|name| Box::from(*name)).collect();
        self.is_settled.then(|| SharedNames { assigned: owned(&self.assigned), whole: owned(&self.whole) })
    }
}

#[cfg(test)]
mod tests {
    use super::SharedNames;
    use crate::rewrite::shared_names;

    fn shared(text: &str) -> Option<SharedNames> {
        shared_names(text.as_bytes())
    }

    /// Returns the names that a text's functions assign to, and those that they use as a whole, in order.
    fn names(text: &str) -> (String, String) {
        let found = shared(text).unwrap_or_else(|| panic!("{text}"));
        let listed = |names: &std::collections::HashSet<Box<[u8]>>| {
            let mut names: Vec<_> =
                names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
            names.sort();
            names.join(" ")
        };
        (listed(&found.assigned), listed(&found.whole))
    }

    #[test]
    fn functions_that_assign_to_global_variables_are_seen() {
        for text in [
            "function m() x = 1 end",
            "function m() local y y, x = 1 end",
            "function m() function x() end end",
            "function m() do local x end x = 1 end",
            "function m() for x = 1, 2 do end x = 1 end",
            "function m() for x in pairs({}) do end x = 1 end",
            "function m() local function f(x) end x = 1 end",
            "function m() while true do local x end x = 1 end",
            "function m() if y then local x else x = 1 end end",
            "function m() repeat local x until y x = 1 end",
            // The variable begins behind the values that it gets.
            "function m() local x = function() x = 1 end end",
            "local x = function() x = 1 end",
            "local f = {g = function() x = 1 end}",
            "function m() return _G end",
            "function m() _G.x = 1 end",
            "function m() _ENV.x = 1 end",
            "local _ENV = {}",
            "_ENV = {}",
            "function m(_ENV) x = 1 end",
            "for _ENV in pairs({}) do end",
            "function m(self) local f = function() self2 = self end end",
        ] {
            assert_eq!(shared(text), None, "{text}");
        }
        for text in [
            "x = 1 _G.y = 2 function _G.m() end",
            "function m() local x x = 1 end",
            "function m(x, ...) x = ... end",
            "function m() for x = 1, 2 do x = 3 end end",
            "function m() repeat local x until (function() return x end)() end",
            "function m() local function x() end x = nil end",
            "function t:m() self = nil end",
            "goto x ::x::",
        ] {
            assert!(shared(text).is_some(), "{text}");
        }
    }

    #[test]
    fn variables_of_functions_around_are_told_from_a_functions_own() {
        let none = String::new;
        assert_eq!(names("local n = 0 n = n + 1"), (none(), none()));
        assert_eq!(names("local n = 0 function m() local n = 1 n = n + 1 end"), (none(), none()));
        assert_eq!(names("local n = 0 function m() return n.x[1].y, #(n.x) end"), (none(), none()));
        assert_eq!(names("local n = 0 function m() n = 1 end").0, "n");
        assert_eq!(names("local n = 0 function m() local n = n n = 1 end"), (none(), "n".to_owned()));
        assert_eq!(names("function m() local n = 0 return function() n = n + 1 end end").0, "n");
        assert_eq!(names("local n = {} function m() n.x = 1 end"), (none(), "n".to_owned()));
        assert_eq!(names("local n = {} function m() n.x.y[1], z.a = 1 end"), (none(), "n z".to_owned()));
        assert_eq!(names("local n = {} function m() function n.x:y() end end"), (none(), "n".to_owned()));
        assert_eq!(names("local n = {} function m() (n).x = 1 end"), (none(), "n".to_owned()));
        assert_eq!(names("local n = {} function m() n:x() f(n) return {n} end"), (none(), "f n".to_owned()));
        assert_eq!(names("local n = {} function m() return n.x(n.y), n[1] end"), (none(), none()));
        assert_eq!(names("local n = {} function m() n'' n{} n() return 1 + n end"), (none(), "n".to_owned()));
    }
}
