#[derive(podracer::Tree)]
struct Dense<A, B> {
    w: A,
    b: B,
}

fn main() {}
