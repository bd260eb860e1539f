/* Writes the same vector again and again, until it is killed.
 *
 *   hold FILE PIECES
 *
 * Prints its process's number. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    /* If nobody kills it. */
    alarm(300);
    if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
    int pieces = atoi(argv[2]);
    char *data = calloc(pieces, 64);
    MPI_File file;
    MPI_Datatype view;
    MPI_Type_vector(pieces, 64, 128, MPI_BYTE, &view);
    MPI_Type_commit(&view);
    int failed = MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    failed = failed || MPI_File_set_view(file, 0, MPI_BYTE, view, "native", MPI_INFO_NULL);
    failed = failed || MPI_File_set_atomicity(file, 1);
    printf("%d\n", getpid());
    fflush(stdout);
    while (!failed) failed = MPI_File_write_at(file, 0, data, pieces * 64, MPI_BYTE, MPI_STATUS_IGNORE);
    /* What was printed right before an abort, MPICH's launcher may lose. */
    sleep(1);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}
