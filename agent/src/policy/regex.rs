//! Rego's `regex` functions. The interpreter's own need the whole `regex` crate, of which this binary has a small
//! stand-in; the engine below that crate has the same syntax and the same answers.

use regex_automata::meta::Regex;
use regorus::{Engine, Value};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What a pattern may grow to. Documents come from the host's side.
const SIZE: usize = 1 << 20;

/// Makes the functions known.
pub(super) fn add_to(engine: &mut Engine) -> Result<()> {
    type Function = fn(&[Value]) -> Option<Value>;
    let functions: [(&str, u8, Function); 5] = [
        ("regex.match", 2, |arguments| {
            Some(Value::Bool(compile(arguments, 0)?.is_match(text(arguments, 1)?)))
        }),
        ("regex.is_valid", 1, |arguments| Some(Value::Bool(compile(arguments, 0).is_some()))),
        ("regex.find_n", 3, find_n),
        ("regex.split", 2, split),
        ("regex.replace", 3, replace),
    ];
    for (name, count, function) in functions {
        // A pattern that is none leaves the result undefined, which makes the rule that asked undefined.
        let extension = move |arguments: Vec<Value>| Ok(function(&arguments).unwrap_or(Value::Undefined));
        engine.add_extension(name.to_owned(), count, Box::new(extension))?;
    }
    Ok(())
}

fn text(arguments: &[Value], place: usize) -> Option<&str> {
    match arguments.get(place)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn compile(arguments: &[Value], place: usize) -> Option<Regex> {
    let limits = Regex::config().nfa_size_limit(Some(SIZE)).hybrid_cache_capacity(SIZE);
    Regex::builder().configure(limits).build(text(arguments, place)?).ok()
}

fn find_n(arguments: &[Value]) -> Option<Value> {
    let (pattern, subject) = (compile(arguments, 0)?, text(arguments, 1)?);
    // A negative number is all of them.
    let most = usize::try_from(arguments.get(2)?.as_i64().ok()?).unwrap_or(usize::MAX);
    let found = pattern.find_iter(subject).take(most);
    Some(Value::from(
        found.filter_map(|found| Some(subject.get(found.range())?.into())).collect::<Vec<Value>>(),
    ))
}

fn split(arguments: &[Value]) -> Option<Value> {
    let (pattern, subject) = (compile(arguments, 0)?, text(arguments, 1)?);
    let parts = pattern.split(subject).filter_map(|part| Some(subject.get(part.range())?.into()));
    Some(Value::from(parts.collect::<Vec<Value>>()))
}

/// `regex.replace(subject, pattern, replacement)`, where `$1` and `${name}` stand for groups.
fn replace(arguments: &[Value]) -> Option<Value> {
    let (subject, pattern, replacement) = (text(arguments, 0)?, compile(arguments, 1)?, text(arguments, 2)?);
    let (mut result, mut last) = (String::new(), 0);
    for groups in pattern.captures_iter(subject) {
        let whole = groups.get_match()?;
        result.push_str(subject.get(last..whole.start())?);
        groups.interpolate_string_into(subject, replacement, &mut result);
        last = whole.end();
    }
    result.push_str(subject.get(last..)?);
    Some(result.into())
}
