struct Dense<T> {
    w: T,
}

#[derive(podracer::Tree)]
struct Mlp<T> {
    layers: Vec<Dense<T>>,
}

fn main() {}
