! As tear.c with write_at, by the bindings of the module mpi_f08: tear FILE TIMES
program tear
  use mpi_f08
  implicit none
  integer, parameter :: pieces = 1024, block = 64, stride = 128, bytes = pieces * block
  integer :: rank, code, time, times, torn, piece, byte, first
  type(MPI_File) :: file
  type(MPI_Datatype) :: vector, view
  type(MPI_Status) :: status
  integer(kind=MPI_OFFSET_KIND) :: zero = 0
  integer(kind=MPI_ADDRESS_KIND) :: lower = 0, extent = pieces * stride
  character(len=1024) :: path, number
  character(len=1) :: mine(bytes), seen(pieces * stride)
  logical :: mixed, flag
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call get_command_argument(1, path)
  call get_command_argument(2, number)
  read (number, *) times
  mine = char(ichar('a') + rank)
  call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, code)
  if (code /= MPI_SUCCESS) call MPI_Abort(MPI_COMM_WORLD, 1, code)
  call MPI_Type_vector(pieces, block, stride, MPI_BYTE, vector, code)
  call MPI_Type_create_resized(vector, lower, extent, view, code)
  call MPI_Type_commit(view, code)
  call MPI_File_set_view(file, zero, MPI_BYTE, view, 'native', MPI_INFO_NULL, code)
  call MPI_File_set_atomicity(file, .true., code)
  if (code /= MPI_SUCCESS) call MPI_Abort(MPI_COMM_WORLD, 1, code)
  call MPI_File_get_atomicity(file, flag, code)
  if (.not. flag) call MPI_Abort(MPI_COMM_WORLD, 1, code)
  torn = 0
  do time = 1, times
    call MPI_Barrier(MPI_COMM_WORLD, code)
    call MPI_File_write_at(file, zero, mine, bytes, MPI_BYTE, status, code)
    if (code /= MPI_SUCCESS) call MPI_Abort(MPI_COMM_WORLD, 1, code)
    call MPI_Barrier(MPI_COMM_WORLD, code)
    if (rank == 0) then
      open (unit=10, file=trim(path), access='stream', form='unformatted', status='old')
      read (10) seen(1:(pieces - 1) * stride + block)
      close (10)
      mixed = .false.
      do piece = 0, pieces - 1
        do byte = 1, block
          if (seen(piece * stride + byte) /= seen(1)) mixed = .true.
        end do
      end do
      if (mixed) torn = torn + 1
    end if
  end do
  if (rank == 0) print '(a,i0,a,i0)', 'torn ', torn, ' of ', times
  call MPI_File_close(file, code)
  call MPI_Finalize(code)
end program
