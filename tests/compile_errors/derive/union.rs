#[derive(podracer::Tree)]
union Either<T: Copy> {
    left: T,
    right: T,
}

fn main() {}
