//! Linear algebra for a fit of three parameters.

/// Three parameters, or one row of their design.
pub(super) type Vector3 = [f64; 3];
/// A symmetric matrix of the parameters.
pub(super) type Matrix3 = [Vector3; 3];

/// The lower triangle L of a positive definite matrix A = L·Lᵀ, by rows.
pub(super) struct Cholesky {
    rows: Vec<Vec<f64>>,
}

impl Cholesky {
    /// Decomposes the matrix with these entries, by row and column; reads only those with column ≤ row. `None`
    /// if the matrix is not positive definite.
    pub(super) fn of(size: usize, entry: impl Fn(usize, usize) -> f64) -> Option<Self> {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(size);
        for row in 0..size {
            let mut line = Vec::with_capacity(row + 1);
            for column in 0..=row {
                let other: &[f64] = rows.get(column).unwrap_or(&line);
                let left = entry(row, column) - dot(&line, other);
                let found = match other.get(column) {
                    Some(diagonal) => left / diagonal,
                    None if left > 0.0 => left.sqrt(),
                    None => return None,
                };
                line.push(found);
            }
            rows.push(line);
        }
        Some(Self { rows })
    }

    /// L⁻¹·v.
    pub(super) fn whiten(&self, values: &[f64]) -> Vec<f64> {
        let mut out: Vec<f64> = Vec::with_capacity(values.len());
        for (line, value) in self.rows.iter().zip(values) {
            let known: f64 = line.iter().zip(&out).map(|(a, b)| a * b).sum();
            out.push((value - known) / line[out.len()]);
        }
        out
    }

    /// L·v.
    pub(super) fn apply(&self, values: Vector3) -> Vector3 {
        let mut out = [0.0; 3];
        for (sum, line) in out.iter_mut().zip(&self.rows) {
            *sum = line.iter().zip(values).map(|(a, b)| a * b).sum();
        }
        out
    }

    /// ln |A|.
    pub(super) fn log_determinant(&self) -> f64 {
        let diagonal = self.rows.iter().filter_map(|line| line.last());
        2.0 * diagonal.map(|it| it.ln()).sum::<f64>()
    }
}

/// A⁻¹ of a positive definite matrix, and ln |A|.
pub(super) fn invert(matrix: &Matrix3) -> Option<(Matrix3, f64)> {
    let cholesky = Cholesky::of(3, |row, column| matrix[row][column])?;
    let unit = |at: usize| -> Vec<f64> { (0..3).map(|it| f64::from(u8::from(it == at))).collect() };
    let columns: Vec<Vec<f64>> = (0..3).map(|at| cholesky.whiten(&unit(at))).collect();
    let mut inverse = [[0.0; 3]; 3];
    for (row, line) in inverse.iter_mut().enumerate() {
        for (column, entry) in line.iter_mut().enumerate() {
            *entry = dot(&columns[row], &columns[column]);
        }
    }
    Some((inverse, cholesky.log_determinant()))
}

/// The sum of products.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// vᵀ·A·v.
pub(super) fn quadratic(matrix: &Matrix3, vector: Vector3) -> f64 {
    let lines = matrix.iter().zip(vector);
    lines.map(|(line, it)| it * dot(line, &vector)).sum()
}
