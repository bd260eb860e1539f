//! From syntax to descriptions.

use std::str::FromStr;

use super::syntax::{Argument, TokenKind, Value, parse};
use crate::PatternError;
use crate::datatype::{Block, Datatype, Description, Distribution, FileView, Member, Order};
use crate::pattern::Region;

impl FromStr for Description {
    type Err = PatternError;

    /// Parses a description.
    ///
    /// # Errors
    ///
    /// [`PatternError::Syntax`] with the position of what is wrong; [`PatternError::TooDeep`] or
    /// [`PatternError::TooManyItems`] where a limit is exceeded.
    fn from_str(text: &str) -> Result<Description, PatternError> {
        let description = description(parse(text)?)?;
        if let Description::Datatype(view) = &description {
            view.datatype.check_depth()?;
        }
        Ok(description)
    }
}

impl FromStr for Datatype {
    type Err = PatternError;

    /// Parses a datatype.
    ///
    /// # Errors
    ///
    /// Those of a description.
    fn from_str(text: &str) -> Result<Datatype, PatternError> {
        let datatype = datatype(parse(text)?)?;
        datatype.check_depth()?;
        Ok(datatype)
    }
}

fn description(value: Value) -> Result<Description, PatternError> {
    let TokenKind::Name(name, _) = &value.kind else {
        return Err(wrong(value.position, "expected the name of a pattern or a datatype"));
    };
    match name.as_str() {
        "range" => {
            let mut arguments = Arguments::of(value)?;
            let region =
                Region { offset: arguments.unsigned("offset")?, length: arguments.unsigned("length")? };
            arguments.end()?;
            Ok(Description::Contiguous(region))
        }
        "list" => {
            let arguments = Arguments::of(value)?;
            arguments.unnamed()?.into_iter().map(region).collect::<Result<_, _>>().map(Description::List)
        }
        "view" => {
            let mut arguments = Arguments::of(value)?;
            let view = FileView {
                displacement: arguments.optional("displacement")?.map_or(Ok(0), unsigned)?,
                count: arguments.optional("count")?.map_or(Ok(1), unsigned)?,
                datatype: *arguments.of_type()?,
            };
            arguments.end()?;
            Ok(Description::Datatype(view))
        }
        _ => datatype(value).map(|datatype| datatype.at(0)),
    }
}

fn wrong(position: usize, reason: impl Into<String>) -> PatternError {
    PatternError::Syntax { reason: reason.into(), position }
}

/// The arguments of a name that are not used yet.
struct Arguments {
    name: String,
    position: usize,
    left: Vec<Argument>,
}

impl Arguments {
    fn of(value: Value) -> Result<Arguments, PatternError> {
        match value.kind {
            TokenKind::Name(name, left) => Ok(Arguments { name, position: value.position, left }),
            _ => Err(wrong(value.position, "expected a name")),
        }
    }

    fn optional(&mut self, name: &str) -> Result<Option<Value>, PatternError> {
        let Some(at) = self.left.iter().position(|argument| argument.name.as_deref() == Some(name)) else {
            return Ok(None);
        };
        let argument = self.left.remove(at);
        if let Some(again) = self.left.iter().find(|argument| argument.name.as_deref() == Some(name)) {
            return Err(wrong(again.value.position, format!("\"{name}\" is given twice")));
        }
        Ok(Some(argument.value))
    }

    fn required(&mut self, name: &str) -> Result<Value, PatternError> {
        self.optional(name)?
            .ok_or_else(|| wrong(self.position, format!("\"{}\" needs \"{name}=…\"", self.name)))
    }

    fn unsigned(&mut self, name: &str) -> Result<u64, PatternError> {
        unsigned(self.required(name)?)
    }

    fn signed(&mut self, name: &str) -> Result<i64, PatternError> {
        signed(self.required(name)?)
    }

    fn list<T>(
        &mut self,
        name: &str,
        item: impl FnMut(Value) -> Result<T, PatternError>,
    ) -> Result<Vec<T>, PatternError> {
        let value = self.required(name)?;
        match value.kind {
            TokenKind::List(items) => items.into_iter().map(item).collect(),
            _ => Err(wrong(value.position, format!("\"{name}\" is a list in square brackets"))),
        }
    }

    /// Returns the number of elements of a block, which is 1 where nothing is said.
    fn block(&mut self) -> Result<u64, PatternError> {
        self.optional("block")?.map_or(Ok(1), unsigned)
    }

    /// Returns the element, which is a byte where nothing is said.
    fn of_type(&mut self) -> Result<Box<Datatype>, PatternError> {
        self.optional("of")?.map_or(Ok(Datatype::byte()), datatype).map(Box::new)
    }

    fn order(&mut self) -> Result<Order, PatternError> {
        let Some(value) = self.optional("order")? else { return Ok(Order::C) };
        match value.kind {
            TokenKind::Name(name, arguments) if name == "c" && arguments.is_empty() => Ok(Order::C),
            TokenKind::Name(name, arguments) if name == "fortran" && arguments.is_empty() => {
                Ok(Order::Fortran)
            }
            _ => Err(wrong(value.position, "an order is \"c\" or \"fortran\"")),
        }
    }

    /// Returns all arguments, none of which has a name.
    fn unnamed(self) -> Result<Vec<Value>, PatternError> {
        match self.left.iter().find(|argument| argument.name.is_some()) {
            Some(named) => {
                Err(wrong(named.value.position, format!("\"{}\" has no named arguments", self.name)))
            }
            None => Ok(self.left.into_iter().map(|argument| argument.value).collect()),
        }
    }

    /// Checks that every argument was used.
    fn end(self) -> Result<(), PatternError> {
        match self.left.first() {
            None => Ok(()),
            Some(Argument { name: Some(name), value }) => {
                Err(wrong(value.position, format!("\"{}\" has no argument \"{name}\"", self.name)))
            }
            Some(Argument { name: None, value }) => Err(wrong(
                value.position,
                format!("the arguments of \"{}\" are written name=value", self.name),
            )),
        }
    }
}

fn unsigned(value: Value) -> Result<u64, PatternError> {
    match value.kind {
        TokenKind::Number(number) => count(number, value.position),
        _ => Err(wrong(value.position, "expected a number")),
    }
}

fn signed(value: Value) -> Result<i64, PatternError> {
    match value.kind {
        TokenKind::Number(number) => displacement(number, value.position),
        _ => Err(wrong(value.position, "expected a number")),
    }
}

fn count(number: i128, position: usize) -> Result<u64, PatternError> {
    u64::try_from(number).map_err(|_| wrong(position, "this number must not be negative"))
}

fn displacement(number: i128, position: usize) -> Result<i64, PatternError> {
    i64::try_from(number).map_err(|_| wrong(position, "a signed number of more than 64 bits"))
}

fn region(value: Value) -> Result<Region, PatternError> {
    match value.kind {
        TokenKind::Region(offset, length) => {
            Ok(Region { offset: count(offset, value.position)?, length: count(length, value.position)? })
        }
        _ => Err(wrong(value.position, "a region is written offset:length")),
    }
}

fn block(value: Value) -> Result<Block, PatternError> {
    match value.kind {
        TokenKind::Block(elements, at, None) => Ok(Block {
            count: count(elements, value.position)?,
            displacement: displacement(at, value.position)?,
        }),
        _ => Err(wrong(value.position, "a block is written count@displacement")),
    }
}

fn member(value: Value) -> Result<Member, PatternError> {
    match value.kind {
        TokenKind::Block(elements, at, Some(of)) => Ok(Member {
            count: count(elements, value.position)?,
            displacement: displacement(at, value.position)?,
            of: datatype(*of)?,
        }),
        _ => Err(wrong(value.position, "a member is written count@displacement TYPE")),
    }
}

fn distribution(value: Value) -> Result<Distribution, PatternError> {
    let position = value.position;
    let Arguments { name, mut left, .. } = Arguments::of(value)?;
    let block = match left.pop() {
        Some(Argument { name: None, value }) if left.is_empty() => Some(unsigned(value)?),
        Some(_) => return Err(wrong(position, format!("\"{name}\" has one number at most"))),
        None => None,
    };
    match (name.as_str(), block) {
        ("none", None) => Ok(Distribution::None),
        ("block", block) => Ok(Distribution::Block(block)),
        ("cyclic", block) => Ok(Distribution::Cyclic(block)),
        _ => Err(wrong(position, "a distribution is none, block, block(N), cyclic or cyclic(N)")),
    }
}

fn datatype(value: Value) -> Result<Datatype, PatternError> {
    let mut a = Arguments::of(value)?;
    let datatype = match a.name.as_str() {
        "byte" => Datatype::byte(),
        "bytes" => {
            let position = a.position;
            return match <[Value; 1]>::try_from(a.unnamed()?) {
                Ok([bytes]) => unsigned(bytes).map(Datatype::Bytes),
                Err(_) => Err(wrong(position, "\"bytes\" has one number")),
            };
        }
        "contiguous" => Datatype::Contiguous { count: a.unsigned("count")?, of: a.of_type()? },
        "vector" => Datatype::Vector {
            count: a.unsigned("count")?,
            block: a.block()?,
            stride: a.signed("stride")?,
            of: a.of_type()?,
        },
        "hvector" => Datatype::Hvector {
            count: a.unsigned("count")?,
            block: a.block()?,
            stride: a.signed("stride")?,
            of: a.of_type()?,
        },
        "indexed" => Datatype::Indexed { blocks: a.list("blocks", block)?, of: a.of_type()? },
        "hindexed" => Datatype::Hindexed { blocks: a.list("blocks", block)?, of: a.of_type()? },
        "indexed_block" => Datatype::IndexedBlock {
            block: a.block()?,
            displacements: a.list("displacements", signed)?,
            of: a.of_type()?,
        },
        "hindexed_block" => Datatype::HindexedBlock {
            block: a.block()?,
            displacements: a.list("displacements", signed)?,
            of: a.of_type()?,
        },
        "struct" => {
            let members = a.unnamed()?.into_iter().map(member).collect::<Result<_, _>>()?;
            return Ok(Datatype::Struct { members });
        }
        "subarray" => Datatype::Subarray {
            sizes: a.list("sizes", unsigned)?,
            subsizes: a.list("subsizes", unsigned)?,
            starts: a.list("starts", unsigned)?,
            order: a.order()?,
            of: a.of_type()?,
        },
        "darray" => Datatype::Darray {
            rank: a.unsigned("rank")?,
            sizes: a.list("sizes", unsigned)?,
            distributions: a.list("distributions", distribution)?,
            processes: a.list("processes", unsigned)?,
            order: a.order()?,
            of: a.of_type()?,
        },
        "resized" => Datatype::Resized {
            lower_bound: a.signed("lower_bound")?,
            extent: a.signed("extent")?,
            of: a.of_type()?,
        },
        other => {
            return Err(wrong(a.position, format!("\"{other}\" is no pattern and no datatype")));
        }
    };
    a.end()?;
    Ok(datatype)
}
