/* The ranks write interleaved columns of a variable by PnetCDF, all together, and rows of another one, each on its own; then all of them
 * write the same columns together, again and again, and read what one of them wrote. PnetCDF has no call for the atomic mode: "nacre mpirun
 * --atomic" turns it on.
 *
 *   pnetcdf FILE TIMES
 *
 * Prints "torn T of N" on rank 0. */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 128, COLUMNS = 16 };

static int rank, size;

static void expect(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "rank %d: not so: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#define EXPECT(condition) expect(condition, #condition)

static void check(int code, const char *what) {
    if (code == NC_NOERR) return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, ncmpi_strerror(code));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
    int times = atoi(argv[2]), torn = 0, file, dimensions[2], records, lines;
    int *mine = malloc(ROWS * COLUMNS * sizeof *mine), *seen = malloc(ROWS * COLUMNS * sizeof *seen);
    check(ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file), "create");
    check(ncmpi_def_dim(file, "row", ROWS, &dimensions[0]), "def_dim");
    check(ncmpi_def_dim(file, "column", (MPI_Offset)COLUMNS * size, &dimensions[1]), "def_dim");
    check(ncmpi_def_var(file, "records", NC_INT, 2, dimensions, &records), "def_var");
    check(ncmpi_def_var(file, "lines", NC_INT, 2, dimensions, &lines), "def_var");
    check(ncmpi_enddef(file), "enddef");

    int next = (rank + 1) % size;
    MPI_Offset start[2] = {0, rank}, count[2] = {ROWS, COLUMNS}, stride[2] = {1, size};
    for (int cell = 0; cell < ROWS * COLUMNS; cell++) mine[cell] = 10 * cell + rank;
    check(ncmpi_put_vars_int_all(file, records, start, count, stride, mine), "put_vars_int_all");
    MPI_Barrier(MPI_COMM_WORLD);
    start[1] = next;
    check(ncmpi_get_vars_int_all(file, records, start, count, stride, seen), "get_vars_int_all");
    for (int cell = 0; cell < ROWS * COLUMNS; cell++) EXPECT(seen[cell] == 10 * cell + next);

    check(ncmpi_begin_indep_data(file), "begin_indep_data");
    for (int row = rank; row < ROWS; row += size) {
        MPI_Offset first[2] = {row, 0}, line[2] = {1, COLUMNS};
        for (int column = 0; column < COLUMNS; column++) mine[column] = 100 * row + column;
        check(ncmpi_put_vara_int(file, lines, first, line, mine), "put_vara_int");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int row = next; row < ROWS; row += size) {
        MPI_Offset first[2] = {row, 0}, line[2] = {1, COLUMNS};
        check(ncmpi_get_vara_int(file, lines, first, line, seen), "get_vara_int");
        for (int column = 0; column < COLUMNS; column++) EXPECT(seen[column] == 100 * row + column);
    }
    check(ncmpi_end_indep_data(file), "end_indep_data");

    start[1] = 0;
    for (int time = 0; time < times; time++) {
        for (int cell = 0; cell < ROWS * COLUMNS; cell++) mine[cell] = size * time + rank;
        check(ncmpi_put_vars_int_all(file, records, start, count, stride, mine), "put_vars_int_all");
        MPI_Barrier(MPI_COMM_WORLD);
        check(ncmpi_get_vars_int_all(file, records, start, count, stride, seen), "get_vars_int_all");
        int mixed = seen[0] / size != time;
        for (int cell = 0; cell < ROWS * COLUMNS; cell++) mixed |= seen[cell] != seen[0];
        torn += mixed;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    check(ncmpi_close(file), "close");
    if (rank == 0) printf("torn %d of %d\n", torn, times);
    free(mine);
    free(seen);
    MPI_Finalize();
    return 0;
}
