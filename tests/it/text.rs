//! Program text: what prints reads back, and what does not read says why.
//!
//! That each operation reads back is held to beside the laws, for every Program met there.

use half::{bf16, f16};
use podracer::jit::run_program;
use podracer::trace::Var;
use podracer::trace::op::{BinaryOp, Op};
use podracer::{Array, DType, Literal, Mode, Program, TensorType};
use pretty_assertions::assert_eq;

use crate::build::{Build, f32s};
use crate::laws::reads_back;

#[test]
fn the_golden_programs_read_back() {
    for entry in std::fs::read_dir("tests/programs").unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(format!("{program}\n"), text);
        assert_eq!(reads_back(&program), Ok(()));
    }
}

/// Literals with every kind of element, and both ways to hold them.
fn literals() -> Vec<Literal> {
    let f32s = [0.0, -0.0, 1.0, -2.5, 0.1, 1e-7, 3.4e38, 1e-45, f32::INFINITY, f32::NAN];
    let payloads = [f32::from_bits(0x7fc0_0001), f32::from_bits(0xff80_0001), -f32::NAN];
    let f64s = [0.1, 1.0 / 3.0, 5e-324, 1.7e308, 1e16, 123456.75, f64::NEG_INFINITY, -f64::NAN];
    let halves: Vec<f16> = (0..=u16::MAX).step_by(97).map(f16::from_bits).collect();
    let brains: Vec<bf16> = (0..=u16::MAX).step_by(89).map(bf16::from_bits).collect();
    let mut literals: Vec<Literal> = vec![
        f32s.into(),
        payloads.into(),
        f64s.into(),
        halves[..60].into(),
        [true, false].into(),
        [i64::MIN, -1, i64::MAX, (1 << 53) + 1].into(),
        [u64::MAX, 0].into(),
        [[1u8, 2, 255], [3, 4, 5]].into(),
        Literal::new::<f32>([0, 3], &[]),
        Literal::splat([2, 2], u64::MAX),
        Literal::splat([3], true),
        Literal::splat([0], -0.0f32),
        Literal::scalar(f32::from_bits(0xffc0_0001)),
        Literal::scalar(7i8).dense(),
        Literal::new([2, 50], &(0..100).map(|i| i as f32 * 0.3).collect::<Vec<_>>()),
        Literal::new([70], &[true; 70]),
        Literal::new([70], &[i16::MIN; 70]),
        halves.into(),
        brains[..64].into(),
        brains.into(),
    ];
    literals.extend(f32s.map(Literal::scalar));
    literals.extend(payloads.map(|x| Literal::splat([2], x)));
    literals
}

#[test]
fn literals_read_back_bit_for_bit() {
    for literal in literals() {
        let text = format!("{literal:#}");
        let again = Literal::parse(&text).unwrap();
        assert_eq!(again, literal, "{text}");
        assert_eq!(again.is_splat(), literal.is_splat(), "{text}");
        assert!(text.len() < 60 + 17 * literal.ty().numel(), "{text}");
    }
    let shown = |x: Literal| x.to_string();
    assert_eq!(shown([1.0f32, 2.5, -0.0, 0.1].into()), "f32[4] [1, 2.5, -0, 0.1]");
    assert_eq!(shown(Literal::scalar(f16::from_f64(0.1))), "f16[] 0.1");
    assert_eq!(shown(Literal::splat([2], 1e30f32)), "f32[2] 1e30");
    assert!(shown((0..100).collect::<Vec<i32>>().into()).ends_with("30, 31]..."));
}

#[test]
fn constants_read_back_in_programs() {
    for literal in literals() {
        let mut build = Build::new();
        let x = build.input(literal.ty().clone());
        let c = build.constant(literal.clone());
        // As an operand, where its type may be left out, as a result, and unused.
        let sum = match literal.ty().dtype {
            DType::Bool => build.op(Op::Binary(BinaryOp::Or), &[c, x]),
            _ => build.op(Op::Binary(BinaryOp::Mul), &[x, c]),
        };
        build.constant(literal);
        assert_eq!(reads_back(&build.finish(&[sum, c])), Ok(()));
    }
}

#[test]
fn variables_may_be_called_as_words_are() {
    // `in`, `let`, `inf` and `true` are the names of variables too.
    let number = |name: &str| name.bytes().fold(0, |n, c| n * 26 + (c - b'a') as usize);
    let mut build = Build::new();
    let mut x = build.input(f32s([2]));
    let words = ["in", "let", "inf", "nan", "body"];
    for i in 1..=number("inf") + 1 {
        x = build.op(Op::Binary(BinaryOp::Add), &[x, x]);
        let _ = i;
    }
    let mut program = build.finish(&[x]);
    let vars = words.map(|word| podracer::trace::Var(number(word) as u32));
    program.outputs.extend(vars.iter().filter(|var| var.index() < program.types.len()));
    assert_eq!(reads_back(&program), Ok(()));
    assert!(program.to_string().contains("in:f32[2] = add im im"));
}

#[test]
fn variables_that_nothing_defines_do_not_matter() {
    let mut build = Build::new();
    let x = build.input(f32s([2]));
    let _unused = build.op(Op::Binary(BinaryOp::Add), &[x, x]);
    let y = build.op(Op::Binary(BinaryOp::Mul), &[x, x]);
    let program = podracer::trace::graph::eliminate_dead_code(build.finish(&[y]));
    assert_eq!(program.to_text().matches('=').count(), 1);
    assert_eq!(reads_back(&program), Ok(()));
    let mut other = program.clone();
    other.types[1] = TensorType::scalar(DType::U8);
    assert_eq!(other, program);
    other.types[2] = TensorType::scalar(DType::U8);
    assert_ne!(other, program);
}

/// Text with a fault, its line and column, and a part of the message.
const FAULTS: &[(&str, &str, &str)] = &[
    ("", "1, column 1", "expected `{`, found the end of the text"),
    ("{ lambda", "1, column 9", "expected an input, as in `a:f32[2]`, or `.`, found the end"),
    ("{ lambda a. let", "1, column 11", "expected `:`, found `.`"),
    (
        "{ lambda a:f31[2]. let",
        "1, column 12",
        "expected an element type, as in `f32`, found `f31`",
    ),
    ("{ lambda a:f32. let", "1, column 15", "expected `[`, found `.`"),
    ("{ lambda a:f32[2 a:i32[]. let", "1, column 18", "expected `,` or `]`, found `a`"),
    ("{ lambda a:f32[-1]. let", "1, column 16", "this number is out of range"),
    ("{ lambda a:f32[x]. let", "1, column 16", "expected a number, found `x`"),
    ("{ lambda a:f32[99999999,99999999]. let", "1, column 15", "more elements than any memory has"),
    ("{ lambda a:f32[2] a:f32[2]. let", "1, column 19", "this variable is defined twice"),
    ("{ lambda zzzzzzzz:f32[]. let", "1, column 10", "this name makes more than 4194304 variables"),
    ("{ lambda ab:f32[]. let", "1, column 10", "no name of several letters begins with `a`"),
    ("{ lambda a:f32[]. in (a) }", "1, column 19", "expected `let`, found `in`"),
    ("{ lambda a:f32[]. let\n  in (b) }", "2, column 7", "this variable is not defined above"),
    ("{ lambda a:f32[]. let\n  in (2) }", "2, column 7", "has a type, as in `0:f32[]`"),
    ("{ lambda a:f32[]. let\n  in (a a) }", "2, column 9", "expected `,` or `)`, found `a`"),
    ("{ lambda a:f32[]. let\n  in (a)", "2, column 9", "expected `}`, found the end of the text"),
    ("{ lambda a:f32[]. let\n  in (a) } }", "2, column 12", "expected the end, found `}`"),
    (
        "{ lambda a:f32[]. let\n  (a) }",
        "2, column 3",
        "expected an equation, as in `b:f32[2] = sin a`",
    ),
    (
        "{ lambda a:f32[]. let\n  b:f32[] = sinn a\n  in (b) }",
        "2, column 13",
        "expected an operation, found `sinn`; did you mean `sin`?\n    b:f32[] = sinn a\n              ^",
    ),
    ("{ lambda a:f32[]. let\n  b:f32[] = frobnicate a", "2, column 13", "found `frobnicate`\n"),
    (
        "{ lambda a:f32[]. let\n  b:f32[] = [2] a",
        "2, column 13",
        "expected an operation, found `[`",
    ),
    ("{ lambda a:f32[]. let\n  b:f32[] = sin c", "2, column 17", "not defined above"),
    (
        "{ lambda a:f32[]. let\n  b:f32[] = sin (a)",
        "2, column 17",
        "expected an operand, found `(`",
    ),
    ("{ lambda a:f32[]. let\n  b:f32[] = sin", "2, column 13", "sin: takes 1 operand(s), got 0"),
    (
        "{ lambda a:f32[]. let\n  b:f32[] = add a 1e",
        "2, column 19",
        "f32 wants a number, `inf`, `-inf` or `NaN`, found `1e`",
    ),
    (
        "{ lambda a:i32[]. let\n  b:i32[] = add a 1.5",
        "2, column 19",
        "i32 wants an integer in its range, found `1.5`",
    ),
    (
        "{ lambda a:u8[]. let\n  b:u8[] = add a 256",
        "2, column 18",
        "u8 wants an integer in its range, found `256`",
    ),
    (
        "{ lambda a:bool[]. let\n  b:bool[] = or a 1",
        "2, column 19",
        "bool wants `true` or `false`, found `1`",
    ),
    ("{ lambda a:f32[]. let\n  b:f32[] = add a infinity:f32[]", "2, column 19", "found `infinity`"),
    (
        "{ lambda a:f32[]. let\n  b:f32[] = add a 2:i32[]",
        "2, column 13",
        "add: element types differ",
    ),
    ("{ lambda a:f32[2]. let\n  b:f32[3] = sin a", "2, column 3", "sin gives f32[2], not f32[3]"),
    (
        "{ lambda a:f32[2]. let\n  b:f32[2] c:f32[2] = sin a",
        "2, column 23",
        "sin gives 1 result(s), and the text has 2",
    ),
    ("{ lambda a:f32[2]. let\n  a:f32[2] = sin a", "2, column 3", "this variable is defined twice"),
    ("{ lambda a:f32[2]. let\n  b:f32[] = reduce_sum a", "2, column 23", "expected `axes=`, found"),
    (
        "{ lambda a:f32[2]. let\n  b:f32[] = reduce_sum[axis=0] a",
        "2, column 24",
        "expected `axes=`, found `axis`",
    ),
    (
        "{ lambda a:f32[2]. let\n  b:f32[] = reduce_sum[axes=0] a",
        "2, column 29",
        "expected `(`, found `0`",
    ),
    (
        "{ lambda a:f32[2]. let\n  b:f32[] = reduce_sum[axes=(0) keep] a",
        "2, column 33",
        "expected no more parameters of reduce_sum, found `keep`",
    ),
    (
        "{ lambda a:f32[2]. let\n  b:f32[] = reduce_sum[axes=(0 a",
        "2, column 23",
        "this bracket is not closed on its line",
    ),
    (
        "{ lambda a:f32[2]. let\n  b:f32[] = reduce_sum[axes=(1)] a",
        "2, column 13",
        "reduce_sum: [1] are not distinct axes of f32[2]",
    ),
    (
        "{ lambda a:f32[2]. let\n  b:f32[] = dot[contract=(0)/(0) precision=exact] a a",
        "2, column 44",
        "expected default, high or highest, found `exact`",
    ),
    (
        "{ lambda. let\n  b:f32[3] = constant[f32[3] [1, 2]]",
        "2, column 30",
        "2 element(s) for f32[3], which has 3",
    ),
    (
        "{ lambda. let\n  b:f32[3] = constant[f32[3] [1, 2, 3]...]",
        "2, column 39",
        "elements are left out here",
    ),
    (
        "{ lambda. let\n  b:f32[1] = constant[f32[1] 0x3f8]",
        "2, column 30",
        "8 digits an element are needed",
    ),
    (
        "{ lambda. let\n  b:bool[1] = constant[bool[1] 0x02]",
        "2, column 32",
        "the bits of a bool are 00 or 01",
    ),
    (
        "{ lambda a:f32[]. let\n  b:f32[] = scan[length=2 consts=0 carry=1] a\n  in (b) }",
        "2, column 43",
        "expected `body: {` with a Program below this equation",
    ),
    (
        "{ lambda a:f32[]. let\n  b:f32[] = sin a\n    body: { lambda a:f32[]. let\n  in (a) }\n  in (b) }",
        "3, column 5",
        "expected the next equation, found `body:`",
    ),
    (
        "{ lambda a:i32[]. let\n  b:i32[] = cond a a\n    branch 1: { lambda a:i32[]. let\n  in (a) }\n  in (b) }",
        "3, column 5",
        "expected `branch 0:`, found `branch 1:`",
    ),
];

#[test]
fn faults_are_reported_with_their_position() {
    let mut wrong = Vec::new();
    for (text, place, part) in FAULTS {
        let error = Program::parse(text).expect_err(text).to_string();
        let at = format!("Program text, line {place}: ");
        if !error.starts_with(&at) || !error.contains(part) {
            wrong.push(format!("{text}\n{error}\ndoes not say {at}{part}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let deep = "{ lambda a:i32[]. let\n b:i32[] = cond a a\n branch 0: ".repeat(100_000);
    let error = Program::parse(&deep).unwrap_err().to_string();
    assert!(error.contains("more than 64 Programs in one another"), "{error}");
    let branches: String = (0..10)
        .map(|i| format!("branch {i}: {{ lambda caaaa:i32[]. let\n in (caaaa) }}\n"))
        .collect();
    let wide = format!("{{ lambda a:i32[]. let\n b:i32[] = cond a a\n {branches} in (b) }}");
    let error = Program::parse(&wide).unwrap_err().to_string();
    assert!(error.contains("makes more than 4194304 variables"), "{error}");
    let error = Literal::parse("f32[2] [1, x]").unwrap_err().to_string();
    assert!(error.starts_with("literal, line 1, column 12: f32 wants a number"), "{error}");
}

#[test]
fn spoilt_text_never_ends_the_process() {
    // Each golden with one piece taken out, doubled, or replaced: an answer, be it yes or no.
    let mut texts: Vec<String> = std::fs::read_dir("tests/programs")
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    texts.sort();
    let pieces = ["", "-1", "0", "2147483647", "(", ")", "[", "]", "9", ":", "a", "{ ", "\n", "#"];
    let mut read = 0;
    for text in &texts {
        for (i, c) in text.char_indices() {
            for piece in pieces {
                let spoilt = format!("{}{piece}{}", &text[..i], &text[i + c.len_utf8()..]);
                read += Program::parse(&spoilt).is_ok() as usize;
            }
        }
    }
    assert!(read > 0);
}

#[test]
fn programs_that_cannot_run_are_errors() {
    let linear = "{ lambda a:f32[]. let
 b:f32[] = custom_lin[known=0] a
 bwd: { lambda c:f32[].                   let in (c) }
 in (b) }";
    let no_type = Program { inputs: vec![Var(3)], ..Default::default() };
    let linear = Program::parse(linear).unwrap();
    for mode in [Mode::Interpret, Mode::Eager, Mode::Jit] {
        let error = run_program(&linear, &[Array::from(1.0f32)], mode).unwrap_err().to_string();
        assert!(error.contains("custom_lin has no value"), "{error}");
        let error = run_program(&no_type, &[], mode).unwrap_err().to_string();
        assert!(error.contains("has no type"), "{error}");
    }
}
