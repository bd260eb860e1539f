//! Packed values: what `nacre.pack` makes and `nacre.unpack` reads, and their form as JSON.
//!
//! The encoding is MessagePack: nil, booleans, 64-bit integers and floats, strings (of any bytes), arrays and maps. A string
//! that is not UTF-8 is in JSON an object with the one field `$base16`.

use serde_json::{Map, Number, Value};

/// The maximum depth of nested values.
const DEPTH_MAX: u32 = 32;

/// Packs values.
///
/// # Errors
///
/// A sentence, if a value is nested too deep, or a number does not fit.
pub fn pack(values: &[Value]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for value in values {
        encode(value, &mut out, 1)?;
    }
    Ok(out)
}

/// Unpacks values, to the end of the bytes.
///
/// # Errors
///
/// A sentence, if the bytes are not packed values.
pub fn unpack(mut bytes: &[u8]) -> Result<Vec<Value>, String> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        values.push(decode(&mut bytes, 1)?);
    }
    Ok(values)
}

fn head(out: &mut Vec<u8>, len: usize, small: u8, small_max: usize, codes: [u8; 2]) -> Result<(), String> {
    if len <= small_max {
        out.push(small + len as u8);
    } else if let Ok(len) = u16::try_from(len) {
        out.push(codes[0]);
        out.extend(len.to_be_bytes());
    } else {
        let len = u32::try_from(len).map_err(|_| "a value is too long".to_owned())?;
        out.push(codes[1]);
        out.extend(len.to_be_bytes());
    }
    Ok(())
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), String> {
    if bytes.len() > 31
        && let Ok(len) = u8::try_from(bytes.len())
    {
        out.extend([0xd9, len]);
    } else {
        head(out, bytes.len(), 0xa0, 31, [0xda, 0xdb])?;
    }
    out.extend_from_slice(bytes);
    Ok(())
}

fn encode(value: &Value, out: &mut Vec<u8>, depth: u32) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("a value is nested more than {DEPTH_MAX} deep"));
    }
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(value) => out.push(0xc2 + u8::from(*value)),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(value @ 0..=127), _) => out.push(value as u8),
            (Some(value @ -32..=-1), _) => out.push(value as i8 as u8),
            (Some(value), _) => {
                out.push(0xd3);
                out.extend(value.to_be_bytes());
            }
            (None, Some(value)) if !number.is_u64() => {
                out.push(0xcb);
                out.extend(value.to_be_bytes());
            }
            _ => return Err(format!("{number} is not a 64-bit integer")),
        },
        Value::String(value) => text(out, value.as_bytes())?,
        Value::Array(values) => {
            head(out, values.len(), 0x90, 15, [0xdc, 0xdd])?;
            for value in values {
                encode(value, out, depth + 1)?;
            }
        }
        Value::Object(fields) => {
            if let (1, Some(Value::String(digits))) = (fields.len(), fields.get("$base16")) {
                return text(
                    out,
                    &from_base16(digits).ok_or("\"$base16\" is followed by no hexadecimal digits")?,
                );
            }
            head(out, fields.len(), 0x80, 15, [0xde, 0xdf])?;
            for (name, value) in fields {
                text(out, name.as_bytes())?;
                encode(value, out, depth + 1)?;
            }
        }
    }
    Ok(())
}

fn from_base16(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], String> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or("a packed value ends too early")?;
    *bytes = rest;
    Ok(taken)
}

/// Reads a big-endian number of up to eight bytes.
fn number(bytes: &mut &[u8], count: usize) -> Result<u64, String> {
    Ok(take(bytes, count)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn decode(bytes: &mut &[u8], depth: u32) -> Result<Value, String> {
    if depth > DEPTH_MAX {
        return Err(format!("a packed value is nested more than {DEPTH_MAX} deep"));
    }
    let float = |value: f64| Number::from_f64(value).map_or(Value::Null, Value::Number);
    let code = take(bytes, 1)?[0];
    Ok(match code {
        0..0x80 => code.into(),
        0xe0.. => i64::from(code as i8).into(),
        0x80..0x90 => decode_map(bytes, usize::from(code - 0x80), depth)?,
        0x90..0xa0 => decode_array(bytes, usize::from(code - 0x90), depth)?,
        0xa0..0xc0 => shown(take(bytes, usize::from(code - 0xa0))?),
        0xc0 => Value::Null,
        0xc2 | 0xc3 => (code == 0xc3).into(),
        0xca => float(f32::from_bits(number(bytes, 4)? as u32).into()),
        0xcb => float(f64::from_bits(number(bytes, 8)?)),
        0xcc..=0xcf => number(bytes, 1 << (code - 0xcc))?.into(),
        0xd0 => i64::from(number(bytes, 1)? as i8).into(),
        0xd1 => i64::from(number(bytes, 2)? as i16).into(),
        0xd2 => i64::from(number(bytes, 4)? as i32).into(),
        0xd3 => (number(bytes, 8)? as i64).into(),
        0xc4..=0xc6 | 0xd9..=0xdb => {
            let width = 1 << if code < 0xc7 { code - 0xc4 } else { code - 0xd9 };
            let len = number(bytes, width)? as usize;
            shown(take(bytes, len)?)
        }
        0xdc | 0xdd => {
            let len = number(bytes, if code == 0xdc { 2 } else { 4 })? as usize;
            decode_array(bytes, len, depth)?
        }
        0xde | 0xdf => {
            let len = number(bytes, if code == 0xde { 2 } else { 4 })? as usize;
            decode_map(bytes, len, depth)?
        }
        _ => return Err(format!("{code:#x} does not begin a packed value")),
    })
}

fn shown(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Value::Object(Map::from_iter([("$base16".to_owned(), digits.into())]))
        }
    }
}

fn decode_array(bytes: &mut &[u8], count: usize, depth: u32) -> Result<Value, String> {
    // Each element takes a byte at least, so a count that lies costs nothing.
    let mut values = Vec::with_capacity(count.min(bytes.len()));
    for _ in 0..count {
        values.push(decode(bytes, depth + 1)?);
    }
    Ok(values.into())
}

fn decode_map(bytes: &mut &[u8], count: usize, depth: u32) -> Result<Value, String> {
    let mut fields = Map::new();
    for _ in 0..count {
        let name = match decode(bytes, depth + 1)? {
            Value::String(name) => name,
            other => other.to_string(),
        };
        fields.insert(name, decode(bytes, depth + 1)?);
    }
    Ok(fields.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_survive() {
        let long = "x".repeat(70_000);
        let values = [
            json!(null),
            json!(true),
            json!(0),
            json!(127),
            json!(-32),
            json!(-33),
            json!(i64::MAX),
            json!(i64::MIN),
            json!(1.5),
            json!("text"),
            json!("y".repeat(200)),
            json!(long),
            json!([]),
            json!([1, [2, "3"]]),
            json!({"a": {"b": []}}),
            json!({"$base16": "00ff"}),
            json!((0..100).collect::<Vec<_>>()),
        ];
        assert_eq!(unpack(&pack(&values).unwrap()).unwrap(), values);
        assert_eq!(pack(&[json!([1, {"a": "b"}])]).unwrap(), [0x92, 1, 0x81, 0xa1, b'a', 0xa1, b'b']);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for bytes in [&[0x92, 1][..], &[0xa5, b'a'], &[0xc1], &[0xdd, 0xff, 0xff, 0xff, 0xff], &[0x91; 100]] {
            assert!(unpack(bytes).is_err(), "{bytes:x?}");
        }
        assert!(pack(&[json!(u64::MAX)]).is_err());
        assert!(pack(&[json!({"$base16": "0"})]).is_err());
    }
}
