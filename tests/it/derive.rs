//! `#[derive(Tree)]` on structs and enums as users write them.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use podracer::Tree;
use podracer::tree::{self, Leaf, map, paths, rebuild, structure, zip_map};

#[derive(Debug, Clone, Copy, PartialEq, Hash)]
enum Activation {
    Tanh,
    Relu,
}

#[derive(Debug, Clone, PartialEq, Tree)]
struct Dense<T> {
    w: T,
    b: Option<T>,
}

#[derive(Debug, Clone, PartialEq, Tree)]
struct Mlp<T> {
    layers: Vec<Dense<T>>,
    activation: Activation,
}

#[derive(Debug, Clone, PartialEq, Tree)]
#[tree(nested = M)]
struct TrainState<M> {
    params: M,
    momentum: Option<M>,
    lr: f32,
}

#[derive(Debug, Clone, PartialEq, Tree)]
#[tree(nested = A, nested = C)]
struct Agent<T, A, C> {
    actor: A,
    critic: C,
    log_std: T,
}

#[derive(Debug, Clone, PartialEq, Tree)]
enum Head<T> {
    Discrete(Dense<T>, usize),
    Continuous { mean: Dense<T>, r#type: [T; 2] },
    None,
}

#[derive(Debug, Clone, PartialEq, Tree)]
struct Pair<Value>(Value, (Value, Dense<Value>));

#[derive(Debug, Clone, PartialEq, Tree)]
struct Wide<T, S, const N: usize>
where
    T: Leaf,
    S: PartialEq,
{
    table: BTreeMap<String, T>,
    rows: [T; N],
    name: S,
    scales: Vec<f32>,
    range: Option<(f64, [f32; 2])>,
    boxed: Box<f64>,
    children: Vec<Wide<T, S, N>>,
}

#[derive(Debug, Clone, PartialEq, Tree)]
struct Empty<T>(PhantomData<T>);

#[derive(Debug, Clone, PartialEq, Tree)]
#[tree(nested = M)]
struct Typed<M> {
    marker: PhantomData<fn() -> M>,
    inner: Box<[usize]>,
    static_name: &'static str,
}

fn mlp() -> Mlp<usize> {
    let layers = vec![Dense { w: 1, b: Some(2) }, Dense { w: 3, b: None }];
    Mlp { layers, activation: Activation::Tanh }
}

fn wide(range: Option<(f64, [f32; 2])>, scales: Vec<f32>) -> Wide<usize, u8, 2> {
    let table = BTreeMap::from([("x".to_string(), 1)]);
    let (rows, boxed) = ([2, 3], Box::new(0.5));
    Wide { table, rows, name: 7, scales, range, boxed, children: vec![] }
}

#[test]
fn a_struct_maps_its_leaves_and_keeps_its_static_fields() {
    let texts = map(mlp(), |leaf: usize| format!("leaf {leaf}"));
    assert_eq!(texts.layers[1].w, "leaf 3");
    assert_eq!(texts.layers[0].b.as_deref(), Some("leaf 2"));
    assert_eq!(texts.activation, Activation::Tanh);
    let back: Mlp<usize> = rebuild(&texts, [1usize, 2, 3]);
    assert_eq!(back, mlp());
}

#[test]
fn paths_follow_the_fields() {
    let state = TrainState { params: mlp(), momentum: Some(mlp()), lr: 0.1 };
    assert_eq!(
        paths::<usize, _>(&state),
        [
            "$.params.layers[0].w",
            "$.params.layers[0].b",
            "$.params.layers[1].w",
            "$.momentum.layers[0].w",
            "$.momentum.layers[0].b",
            "$.momentum.layers[1].w",
        ]
    );
    let pair = Pair(1usize, (2, Dense { w: 3, b: None }));
    assert_eq!(paths::<usize, _>(&pair), ["$[0]", "$[1][0]", "$[1][1].w"]);
}

#[test]
fn nested_parameters_may_stand_beside_a_leaf() {
    let agent = Agent { actor: mlp(), critic: Dense { w: 4usize, b: None }, log_std: 5usize };
    let texts: Agent<String, Mlp<String>, Dense<String>> =
        map(agent, |leaf: usize| leaf.to_string());
    assert_eq!(texts.log_std, "5");
    assert_eq!(tree::into_leaves::<String, _>(texts), ["1", "2", "3", "4", "5"]);
}

#[test]
fn nested_trees_nest() {
    let state = TrainState {
        params: (mlp(), vec![Pair(1usize, (2, Dense { w: 3, b: None }))]),
        momentum: None,
        lr: 0.1,
    };
    let outer = TrainState { params: state.clone(), momentum: None, lr: 0.2 };
    let doubled = map(outer, |leaf: usize| leaf * 2);
    assert_eq!(doubled.params.params.0.layers[1].w, 6);
    assert_eq!(tree::count::<usize, _>(&state), 6);
}

#[derive(Tree, Clone, Debug, PartialEq)]
#[tree(transparent)]
enum Either<T> {
    One(T),
    Layer { dense: Dense<T> },
}

#[test]
fn transparent_types_are_left_out_of_paths() {
    let one = Either::One(1usize);
    let layer = Either::Layer { dense: Dense { w: 1usize, b: Some(2) } };
    assert_eq!(paths::<usize, _>(&(one.clone(), layer.clone())), ["$[0]", "$[1].w", "$[1].b"]);
    assert_ne!(structure::<usize, _>(&one), structure::<usize, _>(&layer));
    assert_eq!(map(one, |leaf: usize| leaf + 1), Either::One(2));
    assert_eq!(map(layer, |leaf: usize| leaf + 1).into_dense().b, Some(3));
}

impl<T> Either<T> {
    fn into_dense(self) -> Dense<T> {
        match self {
            Either::One(_) => panic!("no layer"),
            Either::Layer { dense } => dense,
        }
    }
}

#[test]
fn variants_and_static_fields_are_structure() {
    let dense = |w| Dense { w, b: None };
    let continuous = Head::Continuous { mean: dense(1usize), r#type: [2, 3] };
    assert_eq!(paths::<usize, _>(&continuous), ["$.mean.w", "$.type[0]", "$.type[1]"]);
    assert_eq!(paths::<usize, _>(&Head::Discrete(dense(1usize), 4)), ["$[0].w"]);

    let hashes = [
        structure::<usize, _>(&Head::Discrete(dense(1usize), 4)),
        structure::<usize, _>(&Head::Discrete(dense(1usize), 5)),
        structure::<usize, _>(&continuous),
        structure::<usize, _>(&Head::<usize>::None),
    ];
    for (i, hash) in hashes.iter().enumerate() {
        assert_eq!(hashes.iter().position(|other| other == hash), Some(i));
    }
    assert_eq!(hashes[0], structure::<usize, _>(&Head::Discrete(dense(9usize), 4)));
    let texts = map(continuous, |leaf: usize| leaf.to_string());
    assert_eq!(
        texts,
        Head::Continuous {
            mean: Dense { w: "1".into(), b: None },
            r#type: ["2".into(), "3".into()]
        }
    );

    let mut relu = mlp();
    relu.activation = Activation::Relu;
    let zip = || zip_map::<usize, usize, usize, _>(mlp(), relu, |a, b| a + b);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(zip)).err().unwrap();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("their static fields differ"), "{message}");
}

#[test]
fn floats_are_hashed_by_their_bits() {
    let of = |range, scales| structure::<usize, _>(&wide(range, scales));
    let base = of(Some((1.0, [2.0, 3.0])), vec![1.0]);
    assert_eq!(base, of(Some((1.0, [2.0, 3.0])), vec![1.0]));
    assert_ne!(base, of(Some((1.0, [2.0, 3.5])), vec![1.0]));
    assert_ne!(base, of(None, vec![1.0]));
    assert_ne!(base, of(Some((1.0, [2.0, 3.0])), vec![]));
    let state = |lr| structure::<usize, _>(&TrainState { params: 1usize, momentum: None, lr });
    assert_ne!(state(0.1), state(0.2));
}

#[test]
fn bounds_constants_and_recursion_are_carried_over() {
    let mut tree = wide(None, vec![]);
    tree.children.push(wide(None, vec![]));
    let texts: Wide<String, u8, 2> = map(tree, |leaf: usize| leaf.to_string());
    assert_eq!(texts.rows, ["2", "3"]);
    assert_eq!(texts.table["x"], "1");
    assert_eq!(texts.name, 7);
    assert_eq!(paths::<String, _>(&texts)[3], "$.children[0].table[\"x\"]");
}

#[test]
fn markers_have_no_leaves() {
    assert_eq!(map(Empty(PhantomData::<usize>), |leaf: usize| leaf > 0), Empty(PhantomData));
    let typed =
        Typed { marker: PhantomData::<fn() -> usize>, inner: Box::new([1]), static_name: "n" };
    let mapped = map(typed, |leaf: usize| leaf.to_string());
    assert_eq!(mapped.static_name, "n");
    assert_eq!(*mapped.inner, [1]);
}
