//! The form of a class's text in which the OSDs of a Ceph cluster run it: with counters.
//!
//! Nothing ends a script in an OSD but itself. So a text is parsed, and gets a call of [`COUNT`] at the head of the chunk, of
//! each function's body, of each loop's body, before each `goto`, behind each label, and before a statement behind a long
//! stretch without one.
//! Its argument is the weight of the stretch that follows, by the number of its tokens. Whatever runs for long passes a
//! counter again and again, and the function behind it ends the call. Concatenations, each of which may double a text,
//! become calls of [`JOIN`], which pays for the result before it is made.
//!
//! Both names are parameters of the function that the text becomes, so that a script can neither reach nor replace what
//! they stand for; and a text that uses one of them is refused. No line moves: counters stand within the lines of the text.
//!
//! The rewriting guards against mistakes. It is no protection from somebody who may call the class `lua` himself.

mod names;
mod token;

use std::fmt;

use self::names::Scopes;
pub(crate) use self::names::SharedNames;
use self::token::{Kind, Token, Wrong, tokens};

/// The name of the function that counts.
pub const COUNT: &str = "nacre_count";
/// The name of the function that concatenates.
pub const JOIN: &str = "nacre_join";

/// The number of tokens of a stretch that make one unit of weight.
const TOKENS_PER_UNIT: usize = 16;
/// The number of tokens after which the next statement gets a counter of its own.
const STRETCH_TOKENS: usize = 128;
/// The maximum number of tokens of one statement, functions and loops in it not counted.
const STATEMENT_TOKENS_MAX: usize = 8192;
/// The maximum depth of blocks and expressions: Lua's own is 200.
const DEPTH_MAX: u32 = 150;
/// The maximum length of a literal string, in bytes: what compares it costs as much as its length at each step.
const LITERAL_BYTES_MAX: usize = 16 << 10;

/// The reason for which a text cannot be bounded, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbounded {
    /// The line, from 1.
    pub line: usize,
    /// The reason for the refusal.
    pub reason: String,
}

impl fmt::Display for Unbounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

/// Returns a text with counters.
///
/// # Errors
///
/// [`Unbounded`] if the text is not in the language that Lua 5.3 and 5.4 share, or uses a name that is reserved.
pub fn rewrite(text: &[u8]) -> Result<Vec<u8>, Unbounded> {
    let parsed = Parser::parse(text).map_err(|(at, reason)| unbounded(text, at, reason))?;
    Ok(parsed.edited())
}

/// Returns what the functions of a text do with variables that are not their own; `None` if they may change global ones, or if the
/// text cannot be rewritten.
pub(crate) fn shared_names(text: &[u8]) -> Option<SharedNames> {
    Parser::parse(text).ok()?.scopes.shared()
}

fn unbounded(text: &[u8], at: usize, reason: String) -> Unbounded {
    let line = text[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1;
    Unbounded { line, reason }
}

/// A change of the text: at a place, a number of bytes are replaced. Those of one place are made in the order in which they came.
struct Edit {
    at: usize,
    removed: usize,
    put: Put,
}

enum Put {
    Text(&'static str),
    /// A call of the counter, with its weight.
    Counter(usize),
}

struct Parser<'a> {
    text: &'a [u8],
    tokens: Vec<Token>,
    at: usize,
    depth: u32,
    edits: Vec<Edit>,
    /// The edit of the counter that pays for the stretch that is parsed, and the tokens of that so far.
    counter: usize,
    spent: usize,
    /// True if the next statement may be reached by a jump, which passes the counter of the stretch around it by.
    labelled: bool,
    /// True for each function around that takes a variable number of arguments.
    varargs: Vec<bool>,
    scopes: Scopes<'a>,
}

/// A name or an expression in parentheses, with all that is looked up in it or called.
struct Suffixed<'a> {
    is_call: bool,
    /// The name that it begins with.
    name: Option<&'a [u8]>,
    /// True if something is looked up in the name.
    is_field: bool,
}

impl<'a> Parser<'a> {
    /// Parses a text.
    fn parse(text: &'a [u8]) -> Result<Self, Wrong> {
        let mut parser = Self {
            text,
            tokens: tokens(text)?,
            at: 0,
            depth: 0,
            edits: Vec::new(),
            counter: 0,
            spent: 0,
            labelled: false,
            varargs: vec![true],
            scopes: Scopes::new(),
        };
        parser.chunk()?;
        Ok(parser)
    }

    fn token(&self) -> Token {
        // The last token is the end, behind which nobody goes.
        self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn word(&self) -> &'a [u8] {
        let token = self.token();
        &self.text[token.start..token.end]
    }

    /// Returns whether a keyword or a symbol is next.
    fn is(&self, word: &str) -> bool {
        matches!(self.token().kind, Kind::Keyword | Kind::Symbol) && self.word() == word.as_bytes()
    }

    fn advance(&mut self) -> Token {
        let token = self.token();
        self.at += 1;
        self.spent += 1;
        token
    }

    fn takes(&mut self, word: &str) -> bool {
        let found = self.is(word);
        if found {
            self.advance();
        }
        found
    }

    fn wrong<T>(&self, reason: impl Into<String>) -> Result<T, Wrong> {
        Err((self.token().start, reason.into()))
    }

    fn expect(&mut self, word: &str) -> Result<Token, Wrong> {
        if self.is(word) {
            return Ok(self.advance());
        }
        let found = String::from_utf8_lossy(&self.word()[..self.word().len().min(40)]).into_owned();
        self.wrong(format!("\"{word}\" is expected, and \"{found}\" found"))
    }

    fn name(&mut self) -> Result<&'a [u8], Wrong> {
        let name = self.word();
        match self.token().kind {
            Kind::Name => {
                self.advance();
                Ok(name)
            }
            _ => self.wrong("a name is expected"),
        }
    }

    /// Goes one level deeper for a part of the text.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, Wrong>) -> Result<T, Wrong> {
        if self.depth == DEPTH_MAX {
            return self.wrong(format!("it is nested more than {DEPTH_MAX} deep"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Puts a counter at a place: it pays for what is parsed from now on.
    fn count(&mut self, at: usize) {
        self.weigh();
        self.counter = self.edits.len();
        self.spent = 0;
        self.labelled = false;
        self.edits.push(Edit { at, removed: 0, put: Put::Counter(1) });
    }

    /// Gives the counter of the present stretch its weight.
    fn weigh(&mut self) {
        let weight = 1 + self.spent / TOKENS_PER_UNIT;
        if let Some(Edit { put: Put::Counter(found), .. }) = self.edits.get_mut(self.counter) {
            // What follows a branch counts from where the branch began, which may be less than was in it.
            *found = weight.max(*found);
        }
    }

    /// Parses a part that has a counter of its own, from a place on; the stretch around it then goes on.
    fn counted(
        &mut self,
        at: usize,
        parse: impl FnOnce(&mut Self) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        let (counter, spent) = (self.counter, self.spent);
        self.count(at);
        parse(self)?;
        self.weigh();
        (self.counter, self.spent) = (counter, spent);
        Ok(())
    }

    fn chunk(&mut self) -> Result<(), Wrong> {
        self.counted(0, Self::block)?;
        match self.token().kind {
            Kind::End => Ok(()),
            _ => self.wrong("the text continues after its end"),
        }
    }

    /// Returns whether the block ends here.
    fn block_ends(&self) -> bool {
        self.token().kind == Kind::End || ["else", "elseif", "end", "until"].iter().any(|word| self.is(word))
    }

    fn block(&mut self) -> Result<(), Wrong> {
        let place = self.scopes.open();
        self.statements()?;
        self.scopes.close(place);
        Ok(())
    }

    fn statements(&mut self) -> Result<(), Wrong> {
        while !self.block_ends() {
            if self.is("return") {
                self.pause();
                self.advance();
                if !self.block_ends() && !self.is(";") {
                    self.expressions()?;
                }
                self.takes(";");
                return match self.block_ends() {
                    true => Ok(()),
                    false => self.wrong("\"return\" must be the last statement of a block"),
                };
            }
            self.deeper(Self::statement)?;
        }
        Ok(())
    }

    /// Puts a counter before the statement that begins here, if a label or a long stretch is before it.
    fn pause(&mut self) {
        if self.labelled || self.spent >= STRETCH_TOKENS {
            self.count(self.token().start);
        }
    }

    fn statement(&mut self) -> Result<(), Wrong> {
        if self.takes(";") {
            return Ok(());
        }
        // Labels at the end of a block must stay there, or a jump to them enters the scope of a variable.
        if self.is("goto") {
            // The way back of a loop without a body of its own.
            self.count(self.token().start);
        } else if !self.is("::") {
            self.pause();
        }
        let before = self.spent;
        self.statement_here()?;
        if self.spent > before + STATEMENT_TOKENS_MAX {
            return self.wrong(format!("a statement has more than {STATEMENT_TOKENS_MAX} parts: split it"));
        }
        Ok(())
    }

    fn statement_here(&mut self) -> Result<(), Wrong> {
        let token = self.token();
        if token.kind != Kind::Keyword {
            if self.takes("::") {
                self.name()?;
                self.expect("::")?;
                self.labelled = true;
                return Ok(());
            }
            return self.expression_statement();
        }
        match self.word() {
            b"if" => {
                self.advance();
                loop {
                    self.expression()?;
                    self.expect("then")?;
                    self.branch()?;
                    if self.takes("elseif") {
                        continue;
                    }
                    if self.takes("else") {
                        self.branch()?;
                    }
                    return self.expect("end").map(drop);
                }
            }
            b"while" => {
                self.advance();
                let before = self.spent;
                self.expression()?;
                self.loop_body(self.spent - before)
            }
            b"do" => {
                self.advance();
                self.block()?;
                self.expect("end").map(drop)
            }
            b"for" => {
                self.advance();
                let mut names = vec![self.name()?];
                if self.takes("=") {
                    self.expressions()?;
                } else {
                    while self.takes(",") {
                        names.push(self.name()?);
                    }
                    self.expect("in")?;
                    self.expressions()?;
                }
                let place = self.scopes.open();
                self.declare(names);
                self.loop_body(0)?;
                self.scopes.close(place);
                Ok(())
            }
            b"repeat" => {
                let repeat = self.advance();
                self.counted(repeat.end, |parser| {
                    // The condition sees the variables of the body.
                    let place = parser.scopes.open();
                    parser.statements()?;
                    parser.expect("until")?;
                    parser.expression()?;
                    parser.scopes.close(place);
                    Ok(())
                })
            }
            b"function" => {
                self.advance();
                let name = self.name()?;
                let mut is_field = false;
                while self.takes(".") {
                    self.name()?;
                    is_field = true;
                }
                let is_method = self.takes(":");
                if is_method {
                    self.name()?;
                }
                self.scopes.assign(name, is_field || is_method);
                self.function_body(is_method)
            }
            b"local" => {
                self.advance();
                if self.takes("function") {
                    let name = self.name()?;
                    self.scopes.declare(name);
                    return self.function_body(false);
                }
                let mut names = Vec::new();
                loop {
                    names.push(self.name()?);
                    if self.is("<") {
                        return self.wrong("variables with attributes are not in Lua 5.3, which OSDs run");
                    }
                    if !self.takes(",") {
                        break;
                    }
                }
                if self.takes("=") {
                    self.expressions()?;
                }
                // The values do not see the variables yet.
                self.declare(names);
                Ok(())
            }
            b"break" => {
                self.advance();
                Ok(())
            }
            b"goto" => {
                self.advance();
                self.name().map(drop)
            }
            _ => self.wrong("a statement is expected"),
        }
    }

    /// Parses a block that may be passed over. What follows it must not be paid for by a counter in it.
    fn branch(&mut self) -> Result<(), Wrong> {
        let (counter, spent) = (self.counter, self.spent);
        self.block()?;
        if self.counter != counter {
            self.weigh();
            (self.counter, self.spent) = (counter, spent);
        }
        Ok(())
    }

    /// Parses `do`, a block with a counter, and `end`. The counter also pays for a condition of some tokens, which is looked
    /// at as often.
    fn loop_body(&mut self, condition_tokens: usize) -> Result<(), Wrong> {
        let head = self.expect("do")?;
        self.counted(head.end, |parser| {
            parser.spent = condition_tokens;
            parser.block()
        })?;
        self.expect("end").map(drop)
    }

    fn declare(&mut self, names: Vec<&'a [u8]>) {
        for name in names {
            self.scopes.declare(name);
        }
    }

    /// Parses parameters, a block with a counter, and `end`.
    fn function_body(&mut self, is_method: bool) -> Result<(), Wrong> {
        self.scopes.enter();
        if is_method {
            self.scopes.declare(b"self");
        }
        self.expect("(")?;
        let mut varargs = false;
        if !self.is(")") {
            loop {
                if self.takes("...") {
                    varargs = true;
                    break;
                }
                let name = self.name()?;
                self.scopes.declare(name);
                if !self.takes(",") {
                    break;
                }
            }
        }
        let head = self.expect(")")?;
        self.varargs.push(varargs);
        self.counted(head.end, Self::block)?;
        self.varargs.pop();
        self.scopes.leave();
        self.expect("end").map(drop)
    }

    fn expression_statement(&mut self) -> Result<(), Wrong> {
        let mut target = self.suffixed()?;
        if !self.is("=") && !self.is(",") {
            return match target.is_call {
                true => Ok(()),
                false => self.wrong("an expression is not a statement"),
            };
        }
        loop {
            if target.is_call {
                return self.wrong("a value cannot be assigned to a call");
            }
            if let Some(name) = target.name {
                self.scopes.assign(name, target.is_field);
            }
            if !self.takes(",") {
                break;
            }
            target = self.suffixed()?;
        }
        self.expect("=")?;
        self.expressions()
    }

    fn expressions(&mut self) -> Result<(), Wrong> {
        self.expression()?;
        while self.takes(",") {
            self.expression()?;
        }
        Ok(())
    }

    fn expression(&mut self) -> Result<(), Wrong> {
        self.operators(0)
    }

    /// Parses operands and the operators between them that bind more tightly than a limit.
    fn operators(&mut self, limit: u8) -> Result<(), Wrong> {
        self.deeper(|parser| {
            let start = parser.token().start;
            if ["not", "-", "#", "~"].iter().any(|operator| parser.is(operator)) {
                parser.advance();
                parser.operators(UNARY)?;
            } else {
                parser.simple()?;
            }
            while let Some((_, right)) = parser.priority().filter(|(left, _)| *left > limit) {
                let operator = parser.advance();
                parser.operators(right)?;
                if &parser.text[operator.start..operator.end] == b".." {
                    // A space, since a keyword may stand directly before a string.
                    let put = |at, removed, text| Edit { at, removed, put: Put::Text(text) };
                    let end = parser.tokens[parser.at - 1].end;
                    parser.edits.push(put(start, 0, " nacre_join("));
                    parser.edits.push(put(operator.start, 2, ","));
                    parser.edits.push(put(end, 0, ")"));
                }
            }
            Ok(())
        })
    }

    /// Returns how tightly the operator that is next binds to its left and to its right.
    fn priority(&self) -> Option<(u8, u8)> {
        if !matches!(self.token().kind, Kind::Symbol | Kind::Keyword) {
            return None;
        }
        Some(match self.word() {
            b"or" => (1, 1),
            b"and" => (2, 2),
            b"<" | b">" | b"<=" | b">=" | b"~=" | b"==" => (3, 3),
            b"|" => (4, 4),
            b"~" => (5, 5),
            b"&" => (6, 6),
            b"<<" | b">>" => (7, 7),
            b".." => (9, 8),
            b"+" | b"-" => (10, 10),
            b"*" | b"/" | b"//" | b"%" => (11, 11),
            b"^" => (14, 13),
            _ => return None,
        })
    }

    fn simple(&mut self) -> Result<(), Wrong> {
        match self.token().kind {
            Kind::Number | Kind::Text => {
                self.advance();
                return Ok(());
            }
            _ if self.is("...") => {
                if self.varargs.last() != Some(&true) {
                    return self
                        .wrong("\"...\" is used outside of a function with a variable number of arguments");
                }
                self.advance();
                return Ok(());
            }
            _ => {}
        }
        if self.takes("nil") || self.takes("true") || self.takes("false") {
            return Ok(());
        }
        if self.is("{") {
            return self.table();
        }
        if self.takes("function") {
            return self.function_body(false);
        }
        self.suffixed().map(drop)
    }

    fn table(&mut self) -> Result<(), Wrong> {
        self.expect("{")?;
        while !self.is("}") {
            let text = self.text;
            let following = self.tokens.get(self.at + 1).map(|token| &text[token.start..token.end]);
            if self.takes("[") {
                self.expression()?;
                self.expect("]")?;
                self.expect("=")?;
            } else if self.token().kind == Kind::Name && following == Some(b"=") {
                self.advance();
                self.advance();
            }
            self.expression()?;
            if !self.takes(",") && !self.takes(";") {
                break;
            }
        }
        self.expect("}").map(drop)
    }

    /// Parses a name or an expression in parentheses, and all that is looked up in it or called.
    fn suffixed(&mut self) -> Result<Suffixed<'a>, Wrong> {
        let mut found = Suffixed { is_call: false, name: None, is_field: false };
        if self.takes("(") {
            self.expression()?;
            self.expect(")")?;
        } else {
            let name = self.name()?;
            found.name = Some(name);
            found.is_field = self.is(".") || self.is("[");
            self.scopes.mention(name, !found.is_field);
        }
        loop {
            if self.takes(".") {
                self.name()?;
                found.is_call = false;
            } else if self.takes("[") {
                self.expression()?;
                self.expect("]")?;
                found.is_call = false;
            } else if self.takes(":") {
                self.name()?;
                self.arguments()?;
                found.is_call = true;
            } else if self.is("(") || self.is("{") || self.token().kind == Kind::Text {
                self.arguments()?;
                found.is_call = true;
            } else {
                return Ok(found);
            }
        }
    }

    fn arguments(&mut self) -> Result<(), Wrong> {
        if self.token().kind == Kind::Text {
            self.advance();
            return Ok(());
        }
        if self.is("{") {
            return self.table();
        }
        self.expect("(")?;
        if !self.is(")") {
            self.expressions()?;
        }
        self.expect(")").map(drop)
    }

    /// Returns the text with all edits made.
    fn edited(mut self) -> Vec<u8> {
        // Those of one place keep their order.
        self.edits.sort_by_key(|edit| edit.at);
        let mut out = Vec::with_capacity(self.text.len() + 24 * self.edits.len());
        let mut copied = 0;
        for edit in &self.edits {
            out.extend_from_slice(&self.text[copied..edit.at]);
            copied = edit.at + edit.removed;
            match edit.put {
                Put::Text(text) => out.extend_from_slice(text.as_bytes()),
                Put::Counter(weight) => out.extend_from_slice(format!(" {COUNT}({weight});").as_bytes()),
            }
        }
        out.extend_from_slice(&self.text[copied..]);
        out
    }
}

/// The tightness of operators before their operand.
const UNARY: u8 = 12;
