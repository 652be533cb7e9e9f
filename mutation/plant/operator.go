package plant

// Operator is a kind of small bug.
type Operator string

// The operators.
const (
	// Boundary moves the edge of a comparison: < to <=, >= to >.
	Boundary Operator = "boundary"
	// Comparison turns a comparison round: == to !=, < to >=.
	Comparison Operator = "comparison"
	// Logic swaps && and ||.
	Logic Operator = "logic"
	// Arithmetic swaps + and -, * and /.
	Arithmetic Operator = "arithmetic"
	// Statement drops a call, an assignment, a return, a break or a continue.
	Statement Operator = "statement"
	// Arguments swaps two neighbouring arguments of one type.
	Arguments Operator = "arguments"
	// Branch never takes the body of an if.
	Branch Operator = "branch"
	// Constant changes an integer, a duration or a bool.
	Constant Operator = "constant"
	// Case does nothing in one case of a switch.
	Case Operator = "case"
)
