struct Activation;

#[derive(podracer::Tree)]
struct Dense<T> {
    w: T,
    activation: Activation,
}

fn main() {}
